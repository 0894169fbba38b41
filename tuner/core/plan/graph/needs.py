"""Which tiles of an op are read by tasks of another op, and in which step first.

With separable boxes, each axis can be handled alone: each axis of the writer's grid belongs to one dimension of the
tensor, along which its intervals ascend. Then a task reads, along each axis, a range of coordinates, or those that
overlap with its steps. Tasks with the same ranges share one list. All other boxes are compared pairwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.boxes import STEP, Box, BoxRead, Extent, Ints, Places, TileSpace
from tuner.core.plan.table.distinct import distinct_rows
from tuner.core.plan.table.words import EPILOGUE_STEP

#: Pairs of a read and a tile that are compared at a time.
_MAX_PAIRS = 1 << 22
#: Maximum number of tiles in cached lists.
_MOST_KEPT = 1 << 14
#: The steps if nothing is read step by step.
_NO_STEPS = np.zeros((0, 3), dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Needs:
    """Which of a producer's tiles some tasks read; each list of tiles is stored once."""

    #: [tasks] index of each task's list. Lists are in the order of their ranges of coordinates.
    of: Ints
    #: [lists + 1] where each list begins.
    begin: Ints
    #: The producer's tiles, by their number in its grid, ascending in each list.
    tiles: Ints
    #: The step, counted within the task, in which it first reads something of the tile; or `EPILOGUE_STEP`.
    steps: Ints

    @property
    def num_lists(self) -> int:
        """Number of different lists."""
        return len(self.begin) - 1

    def entries(self, number: int) -> slice:
        """Entries of one list, in `tiles` and `steps`."""
        return slice(int(self.begin[number]), int(self.begin[number + 1]))

    def gathered(self, numbers: Ints) -> tuple[Ints, Ints]:
        """The entries of several lists, one list after the other, and the list that each entry is from."""
        sizes = self.begin[numbers + 1] - self.begin[numbers]
        of = np.repeat(np.arange(len(numbers), dtype=np.int64), sizes)
        first = np.cumsum(sizes) - sizes
        return np.arange(len(of), dtype=np.int64) + (self.begin[numbers] - first)[of], of


@lru_cache(maxsize=8192)
def overlapped(read: Extent, write: Extent) -> tuple[Ints, Ints]:
    """[shape of `read`] the first interval of `write`, an ascending extent, that each interval of `read` overlaps, and
    one past the last."""
    first = np.searchsorted(write.end, read.begin, side="right")
    last = np.searchsorted(write.begin, read.end, side="left")
    return first, np.where(read.begin < read.end, np.maximum(first, last), first)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranges:
    """Ranges of coordinates along an axis of the writer's grid, by axes of the reader's."""

    axes: tuple[int, ...]
    #: [ranges, 2] the first coordinate and one past the last; ranges are distinct and in lexicographic order.
    bounds: Ints
    #: [sizes of the axes] the index of the range at each place.
    of: Ints

    @property
    def is_never_empty(self) -> bool:
        """Whether every tile reads some coordinate."""
        return bool((self.bounds[:, 0] < self.bounds[:, 1]).all())


@lru_cache(maxsize=8192)
def ranges(read: Extent, write: Extent) -> Ranges:
    """The ranges of an ascending extent that overlap with the intervals of another one."""
    first, last = overlapped(read, write)
    found = distinct_rows(np.stack((first.ravel(), last.ravel())).T)
    return Ranges(axes=read.axes, bounds=found.rows, of=found.of.reshape(first.shape))


@dataclass(frozen=True, kw_only=True, eq=False)
class Streamed:
    """Which steps read which coordinates along an axis of the writer's grid. Compared by identity, since it is
    cached."""

    #: [coordinates] the first and the last step of a tile that reads something at the coordinate.
    lowest: Ints
    highest: Ints

    @property
    def is_never_empty(self) -> bool:
        """Whether a whole tile reads some coordinate."""
        return bool((self.lowest <= self.highest).any())

    def first_reads(self, steps: Ints) -> Ints:
        """[lists of steps, coordinates] the index of the list's first step that reads the coordinate, -1 if none does;
        `steps` [lists, 3] has the first step of each list, the stride, and the number of steps."""
        begin, stride, count = (column[:, None] for column in steps.T)
        number = np.maximum(0, -((begin - self.lowest) // stride))
        is_read = (number < count) & (begin + number * stride <= self.highest)
        return np.where(is_read, number, -1)


@lru_cache(maxsize=8192)
def streamed(read: Extent, write: Extent) -> Streamed:
    """Which steps read what, for two ascending extents of which the first depends on the step."""
    lowest, behind = overlapped(write, read)
    return Streamed(lowest=lowest, highest=behind - 1)


@lru_cache(maxsize=8192)
def factors(read: BoxRead, writer: TileSpace) -> tuple[Ranges | Streamed, ...] | None:
    """What a task reads along each axis of the writer's grid; None if its boxes are not separable."""
    boxes = [box for box in writer.writes if box.tensor == read.box.tensor]
    if len(boxes) != 1 or len(boxes[0].extents) != len(read.box.extents):
        return None
    found: dict[int, Ranges | Streamed] = {}
    for mine, theirs in zip(read.box.extents, boxes[0].extents, strict=True):
        if not theirs.axes:
            if not ((mine.begin < mine.end) & (mine.begin < theirs.end) & (theirs.begin < mine.end)).all():
                return None
            continue
        if not theirs.is_rising or theirs.axes[0] in found or (STEP in mine.axes and not _is_stream(mine)):
            return None
        found[theirs.axes[0]] = streamed(mine, theirs) if STEP in mine.axes else ranges(mine, theirs)
    if sum(isinstance(factor, Streamed) for factor in found.values()) > 1:
        return None
    for axis in set(range(len(writer.grid))) - set(found):  # tiles that differ only along it write the same box
        found[axis] = Ranges(axes=(), bounds=np.array([[0, writer.grid[axis]]]), of=np.zeros((), dtype=np.int64))
    return tuple(found[axis] for axis in range(len(writer.grid)))


def _is_stream(extent: Extent) -> bool:
    return extent.axes == (STEP,) and extent.is_rising


def needs(read: BoxRead, writer: TileSpace, places: Places, steps: Ints) -> Needs:
    """What tasks of the reader read of the writer's tiles.

    Args:
        read: one of their op's reads.
        writer: the op that writes the tensor.
        places: by axis, [tasks] the coordinate of each task's tile.
        steps: [tasks, 3] the first step of each task, the stride, and the number of steps.
    """
    separate = factors(read, writer)
    if separate is None:
        return _of_pairs(read, writer, places, steps)
    keys, sizes, rows = np.zeros(len(steps), dtype=np.int64), [], _NO_STEPS
    for factor in separate:
        if isinstance(factor, Streamed):
            taken = distinct_steps(steps)
            mine, rows, size = taken.of, taken.rows, len(taken.rows)
        else:
            mine, size = factor.of[tuple(places[axis] for axis in factor.axes)], len(factor.bounds)
        keys = keys * size + mine
        sizes.append(size)
    used, of = _dense(keys, math.prod(sizes))
    is_small = len(used) * math.prod(writer.grid) <= _MOST_KEPT
    found = (
        _kept(read, writer, used.tobytes(), rows.astype(np.int64).tobytes())
        if is_small
        else _expanded(read, writer, used, rows)
    )
    return Needs(of=of, begin=found.begin, tiles=found.tiles, steps=found.steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Steps:
    rows: Ints
    of: Ints


def distinct_steps(steps: Ints) -> _Steps:
    """Distinct lists of steps, [tasks, 3], in lexicographic order."""
    if (steps[1:] == steps[:-1]).all():  # no tile is split
        return _Steps(rows=steps[:1], of=np.zeros(len(steps), dtype=np.int64))
    found = distinct_rows(steps)
    return _Steps(rows=found.rows, of=found.of)


def _dense(keys: Ints, bound: int) -> tuple[Ints, Ints]:
    """The keys that occur, ascending, and the index of each of `keys` among them. Most are below a small bound."""
    if bound > 4 * len(keys) + 65536:
        used, of = np.unique(keys, return_inverse=True)
        return used, of.reshape(-1)
    occurs = np.zeros(bound, dtype=np.bool_)
    occurs[keys] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[keys]


class _Lists(NamedTuple):
    """Lists as in `Needs`. Read-only, since they are cached."""

    begin: Ints
    tiles: Ints
    steps: Ints


@lru_cache(maxsize=512)
def _kept(read: BoxRead, writer: TileSpace, used: bytes, steps: bytes) -> _Lists:
    """`_expanded` from bytes, since making and proving a plan need the same lists several times."""
    keys, rows = (np.frombuffer(one, dtype=np.int64) for one in (used, steps))
    return _expanded(read, writer, keys, rows.reshape(-1, 3))


def _expanded(read: BoxRead, writer: TileSpace, keys: Ints, of_steps: Ints) -> _Lists:
    """The lists of tiles for `keys`, which ascend; `of_steps` are the distinct lists of steps."""
    separate, flat = factors(read, writer), None
    assert separate is not None
    columns = [of_steps if isinstance(factor, Streamed) else factor.bounds for factor in separate]
    used = np.unravel_index(keys, [len(rows) for rows in columns])
    counts, firsts = list[Ints](), list[Ints]()
    for factor, rows, digit in zip(separate, columns, used, strict=True):
        if isinstance(factor, Streamed):
            first_reads = factor.first_reads(rows)
            number, coordinate = np.nonzero(first_reads >= 0)
            flat = coordinate, first_reads[number, coordinate]
            size = np.bincount(number, minlength=len(rows))
            counts.append(size[digit])
            firsts.append((np.cumsum(size) - size)[digit])
        else:
            counts.append(rows[digit, 1] - rows[digit, 0])
            firsts.append(rows[digit, 0])
    total = np.prod(counts, axis=0, dtype=np.int64)
    begin = np.concatenate(([0], np.cumsum(total)))
    entry_of = np.repeat(np.arange(len(total), dtype=np.int64), total)
    place = np.arange(begin[-1], dtype=np.int64) - begin[:-1][entry_of]
    tiles = np.zeros(begin[-1], dtype=np.int64)
    steps = np.full(begin[-1], EPILOGUE_STEP if read.is_late else 0, dtype=np.int64)
    stride = 1
    for axis in reversed(range(len(writer.grid))):
        digit = place
        if axis:
            place, digit = np.divmod(place, counts[axis][entry_of])
        coordinate = firsts[axis][entry_of] + digit
        if isinstance(separate[axis], Streamed):
            assert flat is not None
            coordinate, steps = flat[0][coordinate], flat[1][coordinate]
        tiles += coordinate * stride
        stride *= writer.grid[axis]
    for array in (begin, tiles, steps):
        array.flags.writeable = False
    return _Lists(begin, tiles, steps)


def _of_pairs(read: BoxRead, writer: TileSpace, places: Places, steps: Ints) -> Needs:
    """Same as `needs`, but compares each read box with each written box."""
    goes_by = sorted({axis for extent in read.box.extents for axis in extent.axes if axis != STEP})
    has_steps = any(STEP in extent.axes for extent in read.box.extents)
    taken = steps if has_steps else np.zeros((len(steps), 3), dtype=np.int64)
    found = distinct_rows(np.column_stack((*(places[axis] for axis in goes_by), taken)))
    coordinates, lists = found.rows[:, : len(goes_by)], found.rows[:, len(goes_by) :]
    count = lists[:, 2] if has_steps else np.ones(len(lists), dtype=np.int64)
    of_list = np.repeat(np.arange(len(lists), dtype=np.int64), count)
    number = np.arange(len(of_list), dtype=np.int64) - (np.cumsum(count) - count)[of_list]
    step = lists[of_list, 0] + number * lists[of_list, 1]
    entries = [np.zeros((0, 3), dtype=np.int64)]
    at_once = max(1, _MAX_PAIRS // writer.num_tiles)
    for start in range(0, len(of_list), at_once):
        some = slice(start, start + at_once)
        by_axis = dict(zip(goes_by, coordinates[of_list[some]].T, strict=True))
        pair, tile = np.nonzero(_overlaps(read.box, writer, {**by_axis, STEP: step[some]}, len(of_list[some])))
        entries.append(np.column_stack((of_list[some][pair], tile, number[some][pair])))
    met = distinct_rows(np.concatenate(entries)).rows
    is_first = np.concatenate(([True], (np.diff(met[:, :2], axis=0) != 0).any(axis=1)))[: len(met)]
    met = met[is_first]
    begin = np.concatenate(([0], np.cumsum(np.bincount(met[:, 0], minlength=len(lists)))))
    in_step = np.full(len(met), EPILOGUE_STEP) if read.is_late else met[:, 2]
    return Needs(of=found.of, begin=begin, tiles=met[:, 1], steps=in_step)


def _overlaps(box: Box, writer: TileSpace, places: dict[int, Ints], num_reads: int) -> npt.NDArray[np.bool_]:
    """[reads, tiles of the writer] whether the boxes overlap."""
    meets = np.zeros((num_reads, writer.num_tiles), dtype=np.bool_)
    for other in written(writer, box.tensor):
        if len(other.extents) != len(box.extents):
            what = f"{box.tensor} has {len(other.extents)} dimensions in {writer.name}, which writes it"
            raise ValueError(f"{what}, and {len(box.extents)} in an op that reads it")
        one = np.ones_like(meets)
        for mine, theirs in zip(box.extents, other.extents, strict=True):
            begin, end = (side[tuple(places[axis] for axis in mine.axes)] for side in (mine.begin, mine.end))
            first, last = intervals_of(theirs, writer)
            begin, end = np.reshape(begin, (-1, 1)), np.reshape(end, (-1, 1))
            one &= (begin < last) & (first < end) & (begin < end)
        meets |= one
    return meets


def written(writer: TileSpace, tensor: str) -> Iterator[Box]:
    """The boxes of a tensor that the writer's tiles write."""
    return (box for box in writer.writes if box.tensor == tensor)


def intervals_of(extent: Extent, space: TileSpace) -> tuple[Ints, Ints]:
    """[tiles of the space] where each tile's interval begins, and one past its end."""
    places = np.unravel_index(np.arange(space.num_tiles), space.grid)
    at = tuple(places[axis] for axis in extent.axes)
    begin, end = (np.broadcast_to(side[at], (space.num_tiles,)) for side in (extent.begin, extent.end))
    return begin, end
