"""From tiles to tasks: which tiles of the global order are split, and into which parts.

Even parts: a tile has as many parts as its op requires, and they differ by at most one k-step. Stream-K: the k-steps of
the tail form one sequence, tile after tile in the global order. Each CTA gets a contiguous range of it, such that every
CTA has the same work, including its whole tiles. A tile is split where a range ends within it.

Source: Osama et al., "Stream-K: work-centric parallel decomposition for dense matrix-matrix multiplication on the GPU",
PPoPP 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.products import product_tile
from tuner.core.plan.graph.tile_graph import TaskGraph, TileGraph
from tuner.core.plan.order.queues import queue_of_tasks, sides_of, tail_of
from tuner.core.plan.table.words import TASK_FIELDS, Words
from tuner.core.schedule.ordering import Ordering

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Minimum k-steps of a part; a smaller part goes to the neighbouring CTA. If even parts have fewer, that is the
#: minimum.
MIN_STREAM_STEPS = 2


def parts_of(graph: TaskGraph) -> Ints:
    """[ops] maximum parts of a split tile, by op index; 1 for the ops of other launches."""
    parts = np.ones(max(graph.op_indices) + 1, dtype=np.int64)
    for op in graph.op_indices:
        parts[op] = graph.num_parts(op)
    return parts


def whole_tasks(ops: Ints, rows: Ints, cols: Ints) -> Words:
    """[tiles, 11] a task per tile, with the words of a plan; none waits or posts yet."""
    tasks = np.zeros((ops.size, TASK_FIELDS), dtype=np.int32)
    tasks[:, 0], tasks[:, 1], tasks[:, 2], tasks[:, 5] = ops, rows, cols, -1
    return tasks


def parted(
    graph: TaskGraph, order: tuple[Ints, Ints, Ints], *, part_major: bool = False, is_split: Flags | None = None
) -> Words:
    """[num_tasks, 11] the tasks of a global order, in even parts. The parts of a tile follow each other in place of the
    tile; or all tiles of a run of one op's tasks come part by part in place of the run. `is_split` says which tiles are
    split, if the op has parts but not all of its tiles are split."""
    repeats = parts_of(graph)[order[0]]
    if is_split is not None:
        repeats = np.where(is_split, repeats, 1)
    tasks = np.repeat(whole_tasks(*order), repeats, axis=0)
    in_parts = np.flatnonzero(np.repeat(repeats > 1, repeats))
    part = (np.arange(len(tasks)) - np.repeat(np.cumsum(repeats) - repeats, repeats))[in_parts]
    num_parts, all_steps = np.repeat(repeats, repeats)[in_parts], graph.all_steps[tasks[in_parts, 0]]
    first, end = all_steps * part // num_parts, all_steps * (part + 1) // num_parts
    if graph.strided_parts:
        first, end = part, part - (part - all_steps) // num_parts
    tasks[in_parts, 6], tasks[in_parts, 7], tasks[in_parts, 9], tasks[in_parts, 10] = (
        part,
        num_parts,
        first,
        end - first,
    )
    if not part_major:
        return tasks
    runs = np.concatenate(([0], np.cumsum(np.diff(tasks[:, 0]) != 0)))
    return tasks[np.lexsort((tasks[:, 6], runs))]  # stable: tiles keep their order


class Pieces(NamedTuple):
    """Ranges of tiles' k-steps, as arrays [pieces]: the tile, the first k-step, the number of k-steps, and the CTA."""

    tile: Ints
    first: Ints
    num_steps: Ints
    cta: Ints


def stream_split(graph: TileGraph, ops: Ints, num_ctas: int, ordering: Ordering) -> Pieces:
    """The tiles of a global order, in that order, with the tail split by k-steps; `ops` has the op of each tile.

    Whole tiles are assigned round-robin; in the tail, these are only the tiles of ops without parts. The other tiles
    of the tail form one sequence, which is split.
    """
    queue, steps, work = queue_of_tasks(ops, num_ctas, ordering), graph.all_steps[ops], _work(graph)[ops]
    most = parts_of(graph)[ops]
    is_split = tail_of(ops, num_ctas, ordering.partition) & (most > 1)
    whole = np.flatnonzero(~is_split)
    busy = np.bincount(queue[whole], weights=(steps * work)[whole], minlength=num_ctas).astype(np.float64)
    pieces = [Pieces(whole, np.zeros_like(whole), steps[whole], queue[whole])]
    for tiles, ctas in sides_of(ops, num_ctas, ordering.partition):
        mine = tiles[is_split[tiles]]
        if mine.size:
            split = evenly_split(steps[mine], work[mine], most[mine], busy[ctas.start : ctas.stop])
            pieces.append(split._replace(tile=mine[split.tile], cta=ctas.start + split.cta))
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    in_order = np.lexsort((columns[1], columns[0]))
    return Pieces(*(column[in_order] for column in columns))


def streamed(graph: TileGraph, order: tuple[Ints, Ints, Ints], num_ctas: int, ordering: Ordering) -> tuple[Words, Ints]:
    """[num_tasks, 11] the tasks of a global order whose tail is divided by k-steps, and the queue of each task."""
    tile, first, num_steps, cta = stream_split(graph, order[0], num_ctas, ordering)
    tasks, repeats = whole_tasks(*order)[tile], np.bincount(tile)
    is_part = repeats[tile] > 1
    part = np.arange(tile.size) - (np.cumsum(repeats) - repeats)[tile]
    for column, values in ((6, part), (7, repeats[tile]), (9, first), (10, num_steps)):
        tasks[is_part, column] = values[is_part]
    return tasks, cta


def evenly_split(steps: Ints, work: Ints, most: Ints, busy: npt.NDArray[np.float64]) -> Pieces:
    """The k-steps of some tiles in sequence, divided among the CTAs in ranges such that all have the same work.

    Args:
        steps: [tiles] k-steps of each tile.
        work: [tiles] work of one k-step.
        most: [tiles] maximum parts of each tile.
        busy: [CTAs] other work of each CTA.

    As many CTAs get a range as the maximum parts of the tiles allow: those with the least work. A cut is at a whole
    k-step, or at the tile's end if a very small part would remain. If nothing can be cut in this way, the tiles
    are assigned whole.
    """
    by_busy = np.argsort(busy, kind="stable")
    total, end, least = float((steps * work).sum()), np.cumsum(steps), busy[by_busy]
    begin, fewest = end - steps, np.minimum(MIN_STREAM_STEPS, np.maximum(1, steps // most))
    level = (total + np.cumsum(least)) / np.arange(1, busy.size + 1)  # work per CTA, by how many get some
    enough = (level > least) & (level - least[0] >= (steps * work / most).max())  # ideally, no tile has more parts
    for count in range(int(np.count_nonzero(enough)), 1, -1):
        ctas = np.sort(by_busy[:count])
        tile, inside = _places_in_tiles(steps, work, fewest, np.cumsum(level[count - 1] - busy[ctas])[:-1])
        parts = 1 + np.bincount(tile[(inside > 0) & (inside < steps[tile])], minlength=steps.size)
        bounds = begin[tile] + inside
        if (parts <= most).all() and (np.concatenate((bounds, end[-1:])) > np.concatenate(([0], bounds))).all():
            pieces = _between(begin, end, bounds)
            if (pieces.num_steps >= np.where(parts > 1, fewest, 1)[pieces.tile]).all():
                return pieces._replace(cta=ctas[pieces.cta])
    ctas = np.sort(by_busy[: steps.size])
    return _between(begin, end, end[:0])._replace(cta=ctas[np.arange(steps.size) * ctas.size // steps.size])


def _places_in_tiles(steps: Ints, work: Ints, fewest: Ints, places: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """The tile in which work is cut, and after how many of its k-steps: whole k-steps, without very small parts."""
    end = np.cumsum(steps * work)
    tile = np.minimum(np.searchsorted(end, places, side="right"), steps.size - 1)
    whole = steps[tile]
    inside = np.rint(whole - (end[tile] - places) / work[tile]).astype(np.int64)
    near_end = 2 * inside >= whole
    is_sliver = np.where(near_end, whole - inside, inside) < fewest[tile]
    return tile, np.where(is_sliver, near_end * whole, inside)


def _between(begin: Ints, end: Ints, bounds: Ints) -> Pieces:
    """The pieces between ends of tiles and boundaries of ranges, in k-steps; `cta` is the index of the range."""
    begins = np.sort(np.concatenate((begin, bounds)))
    begins = begins[np.concatenate(([True], begins[1:] != begins[:-1]))]
    tile = np.searchsorted(end, begins, side="right")
    num_steps = np.concatenate((begins[1:], end[-1:])) - begins
    return Pieces(tile, begins - begin[tile], num_steps, np.searchsorted(bounds, begins, side="right"))


def _work(graph: TileGraph) -> Ints:
    """[ops] multiplications per k-step."""
    tiles = (product_tile(op, tile) for op, tile in zip(graph.workload.tile_ops, graph.tiling.tiles, strict=True))
    return np.array([tile.m * tile.n * tile.k for tile in tiles], dtype=np.int64)
