"""Signals: which tiles post to which, and what a reader of some tiles waits for.

A granularity groups the tiles of a producer by row group and column group, a signal for each. Those of an op that get
the same number of posts lie side by side, a *bank*, so a reader of whole tile rows needs one wait per bank: at most two
if its tiles are as high. A tile posts once, however many parts it is split into: when the last of them is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tuner.core.schedule import Granularity

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Bank:
    """Signals of one producer that get the same number of posts in a launch, row group by row group."""

    #: The first signal.
    first: int
    #: Row groups, half-open.
    row_begin: int
    row_end: int
    #: Column groups, half-open.
    col_begin: int
    col_end: int
    #: Posts of each.
    num_posts: int

    def waits_on(self, begin: int, end: int, cols: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
        """Wait records for its signals of row groups [begin, end) and column groups `cols`, ascending."""
        begin, end = max(begin, self.row_begin), min(end, self.row_end)
        width = self.col_end - self.col_begin
        mine = np.array([col - self.col_begin for col in cols if self.col_begin <= col < self.col_end], dtype=np.int64)
        rows = np.arange(begin - self.row_begin, end - self.row_begin, dtype=np.int64)
        signals = (self.first + rows[:, None] * width + mine).ravel()
        if signals.size:
            for run in np.split(signals, np.flatnonzero(np.diff(signals) > 1) + 1):
                yield int(run[0]), int(run[-1]) + 1, self.num_posts, self.num_posts


@dataclass(frozen=True, kw_only=True)
class Signals:
    """The signals of one producer's tile grid."""

    #: Tile rows of a signal.
    height: int
    #: [tile columns] the column group of each.
    col_groups: tuple[int, ...]
    banks: tuple[Bank, ...]
    #: [tile rows, tile columns] the signal that the tile posts.
    post: Ints

    @property
    def num_signals(self) -> int:
        """Of this producer."""
        return sum((b.row_end - b.row_begin) * (b.col_end - b.col_begin) for b in self.banks)

    def waits_for(
        self, first: int, last: int, first_col: int = 0, last_col: int | None = None
    ) -> Iterator[tuple[int, int, int, int]]:
        """Wait records that cover the tiles of rows [first, last) and columns [first_col, last_col), all by default."""
        cols = tuple(sorted(set(self.col_groups[first_col:last_col])))
        for bank in self.banks:
            yield from bank.waits_on(first // self.height, -(-last // self.height), cols)


def column_groups(granularity: Granularity, width: int, num_cols: int) -> list[int]:
    """[tile columns] the group of each."""
    match granularity:
        case Granularity.TILE:
            return list(range(num_cols))
        case Granularity.CHUNK:
            return [col // width for col in range(num_cols)]
        case Granularity.STRIDED:
            return [col % width for col in range(num_cols)]
        case Granularity.ROW | Granularity.BATCH | Granularity.BARRIER:
            return [0] * num_cols


def rows_per_signal(granularity: Granularity, width: int, num_rows: int) -> int:
    """Tile rows of a producer that share a signal."""
    match granularity:
        case Granularity.BATCH:
            return min(width, num_rows)
        case Granularity.BARRIER:
            return num_rows
        case _:
            return 1


def signals_of(granularity: Granularity, width: int, num_rows: int, num_cols: int, first: int) -> Signals:
    """The signals of a producer with such a tile grid, numbered from `first`."""
    height = rows_per_signal(granularity, width, num_rows)
    row_group = np.arange(num_rows, dtype=np.int64) // height
    col_group = np.array(column_groups(granularity, width, num_cols), dtype=np.int64)
    post = np.empty((num_rows, num_cols), dtype=np.int64)
    banks: list[Bank] = []
    for row_begin, row_end, rows in _runs(np.bincount(row_group)):
        for col_begin, col_end, cols in _runs(np.bincount(col_group)):
            bank = Bank(
                first=first,
                row_begin=row_begin,
                row_end=row_end,
                col_begin=col_begin,
                col_end=col_end,
                num_posts=rows * cols,
            )
            mine = np.ix_(
                (row_group >= row_begin) & (row_group < row_end), (col_group >= col_begin) & (col_group < col_end)
            )
            number = (row_group[:, None] - row_begin) * (col_end - col_begin) + col_group[None, :] - col_begin
            post[mine] = first + number[mine]
            first += (row_end - row_begin) * (col_end - col_begin)
            banks.append(bank)
    return Signals(height=height, col_groups=tuple(col_group.tolist()), banks=tuple(banks), post=post)


def _runs(counts: Ints) -> Iterator[tuple[int, int, int]]:
    """(begin, end, value) of the runs of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)]
    yield from ((a, b, int(counts[a])) for a, b in pairwise(edges))
