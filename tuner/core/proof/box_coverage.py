"""Proves about the boxes of a launch's ops that no element is written by two tiles, and that everything that a task
reads from a tensor of the launch is written by the launch's tiles.

This follows directly if each dimension depends on its own axis and its intervals are consecutive. All other boxes are
compared pairwise. Disjoint boxes cover another one if the volumes of their intersections with it add up to its volume.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np

from tuner.core.plan.graph.boxes import STEP, Box, Ints, TileSpace
from tuner.core.plan.graph.needs import intervals_of
from tuner.core.plan.graph.tile_graph import TaskGraph
from tuner.core.plan.table.distinct import distinct_rows
from tuner.errors import CoverageError

_Spaces = tuple[TileSpace, ...]
#: Pairs of boxes that are compared at a time.
_MAX_PAIRS = 1 << 20


def check_boxes(graph: TaskGraph) -> None:
    """Returns if each element is written once, and everything that is read is written; assumes that the launch covers
    its tiles.

    Raises:
        CoverageError: two tiles have boxes that share an element, or a tile reads elements of a box that
            no tile writes.
    """
    check_spaces(tuple(graph.spaces[op] for op in graph.op_indices))


def check_spaces(spaces: _Spaces) -> None:
    """Same as `check_boxes` for the boxes of some ops.

    Raises:
        CoverageError: see `check_boxes`.
    """
    if found := _problem(spaces):
        raise CoverageError(*found)


@lru_cache(maxsize=256)
def _problem(spaces: _Spaces) -> tuple[str, str] | None:
    """What is wrong, and where, as text; cached, since thousands of orders share the boxes of their ops."""
    for tensor in sorted({box.tensor for space in spaces for box in space.writes}):
        boxes = [(space, box) for space in spaces for box in space.writes if box.tensor == tensor]
        hull = _hull(boxes[0][0], boxes[0][1]) if len(boxes) == 1 else None
        if hull is None and (twice := _written_twice(boxes)):
            return "an element is written twice", twice
        for space in spaces:
            for box in (read.box for read in space.reads if read.box.tensor == tensor):
                if (hull is None or not _is_inside(box, hull)) and (unwritten := _unwritten(space, box, boxes)):
                    return "a task reads what no task writes", unwritten
    return None


def _hull(space: TileSpace, box: Box) -> list[tuple[int, int]] | None:
    """The union of an op's boxes, by dimension, if each depends on its own axis and its intervals are consecutive."""
    axes = [axis for extent in box.extents for axis in extent.axes]
    needed = {axis for axis, size in enumerate(space.grid) if size > 1}
    if len(set(axes)) < len(axes) or not needed <= set(axes) or any(len(extent.axes) > 1 for extent in box.extents):
        return None
    ends = [(extent.begin.ravel(), extent.end.ravel()) for extent in box.extents]
    if any((begin[1:] != end[:-1]).any() for begin, end in ends):
        return None
    return [(int(begin[0]), int(end[-1])) for begin, end in ends]


def _is_inside(box: Box, hull: list[tuple[int, int]]) -> bool:
    """Whether all boxes are within the hull; an empty box may be anywhere."""
    return len(box.extents) == len(hull) and all(
        bool(((extent.begin >= low) & (extent.end <= high)).all())
        for extent, (low, high) in zip(box.extents, hull, strict=True)
    )


def _sides(space: TileSpace, box: Box) -> tuple[Ints, Ints]:
    """[tiles, dimensions] where each tile's box begins, and one past its end."""
    begin, end = zip(*(intervals_of(extent, space) for extent in box.extents), strict=True)
    return np.stack(begin, axis=1), np.stack(end, axis=1)


def _written_twice(boxes: list[tuple[TileSpace, Box]]) -> str | None:
    sides = [_sides(space, box) for space, box in boxes]
    for (one, (space, box)), (other, (second, theirs)) in product(enumerate(boxes), enumerate(boxes)):
        if one > other or (one == other and space.num_tiles == 1):
            continue
        for tile, shared in _shared(sides[one], sides[other]):
            if one == other:
                shared[np.arange(len(tile)), tile] = 0
            if shared.any():
                row, col = (int(place[0]) for place in np.nonzero(shared))
                first = tile_text(space, int(tile[row]), box)
                return f"{first} and {tile_text(second, col, theirs)}, both written, overlap"
    return None


def _shared(mine: tuple[Ints, Ints], theirs: tuple[Ints, Ints]) -> Iterator[tuple[Ints, Ints]]:
    """For some boxes at a time: their numbers, and [boxes, other boxes] the number of elements that each pair
    shares."""
    at_once = max(1, _MAX_PAIRS // len(theirs[0]))
    for start in range(0, len(mine[0]), at_once):
        some = slice(start, start + at_once)
        first = np.maximum(mine[0][some, None], theirs[0][None])
        last = np.minimum(mine[1][some, None], theirs[1][None])
        yield np.arange(len(mine[0]))[some], np.maximum(last - first, 0).prod(axis=2)


def _unwritten(space: TileSpace, box: Box, boxes: list[tuple[TileSpace, Box]]) -> str | None:
    """A tile, and a box of which it reads elements that no tile writes."""
    if any(len(theirs.extents) != len(box.extents) for _, theirs in boxes):
        return f"{tile_text(space, 0, box)} is read, but was written with a different number of dimensions"
    axes = sorted({axis for extent in box.extents for axis in extent.axes})  # the steps first
    sizes = [space.num_steps if axis == STEP else space.grid[axis] for axis in axes]
    values = dict(zip(axes, np.unravel_index(np.arange(math.prod(sizes)), sizes), strict=True)) if axes else {}
    places = [tuple(values[axis] for axis in extent.axes) for extent in box.extents]
    begin, end = (
        np.stack([np.broadcast_to(side[place], (math.prod(sizes),)) for side, place in zip(edges, places, strict=True)])
        for edges in zip(*((extent.begin, extent.end) for extent in box.extents), strict=True)
    )
    found = distinct_rows(np.concatenate((begin, end)).T)
    half = len(box.extents)
    mine = found.rows[:, :half], found.rows[:, half:]
    covered = np.zeros(len(found.rows), dtype=np.int64)
    for writer, theirs in boxes:
        for number, shared in _shared(mine, _sides(writer, theirs)):
            covered[number] += shared.sum(axis=1)
    lacking = np.flatnonzero(covered != np.maximum(mine[1] - mine[0], 0).prod(axis=1))
    if not lacking.size:
        return None
    at = {axis: int(value[found.first[lacking[0]]]) for axis, value in values.items()}
    tile = tuple(at.get(axis, 0) for axis in range(len(space.grid)))
    place = int(np.ravel_multi_index(tile, space.grid))
    return f"{tile_text(space, place, box, at.get(STEP, 0))}, read in step {at.get(STEP, 0)}, is not fully written"


def tile_text(space: TileSpace, tile: int, box: Box, step: int = 0) -> str:
    """``down tile 0,3's box up[0:16, 0:32]``."""
    row, col = divmod(tile, space.word_grid[1])
    return f"{space.name} tile {row},{col}'s box {box.text(space.coordinates(row, col), step)}"
