"""Signals: which tiles post to which signal, and what a reader of some tiles waits for.

A granularity groups the tiles of a producer by row group and column group, with one signal for each. Signals of an op
that get the same number of posts are contiguous: a *bank*. So a reader of whole tile rows needs one wait per bank;
there are at most two if tiles are equally high. If it waits by slice, it needs one for each k-step that is the first to
read what a signal covers. A tile posts once, however many parts it is split into: when the last of them is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tuner.core.schedule.ordering import Granularity

Ints = npt.NDArray[np.int64]

#: A wait: its signals, half-open, threshold, posts per launch, and the k-step before which it happens.
WaitRecord = tuple[int, int, int, int, int]


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
    #: Posts of each signal.
    num_posts: int


@dataclass(frozen=True, kw_only=True)
class Signals:
    """The signals of one producer's tile grid."""

    #: Tile rows per signal.
    height: int
    #: [tile columns] the group of each column.
    col_groups: tuple[int, ...]
    banks: tuple[Bank, ...]
    #: [tile rows, tile columns] the signal that the tile posts.
    post: Ints

    @property
    def num_signals(self) -> int:
        """Number of signals of this producer."""
        return self.num_posts.size

    @cached_property
    def num_posts(self) -> Ints:
        """[num_signals] posts that each signal gets in a launch."""
        counts = [(b.num_posts, (b.row_end - b.row_begin) * (b.col_end - b.col_begin)) for b in self.banks]
        posts, sizes = np.array(counts, dtype=np.int64).T
        return np.repeat(posts, sizes)

    def waits_of_lists(self, of: Ints, read: Ints, steps: Ints | None = None) -> Ints:
        """Wait records of several lists of tiles that post to the signals `read`, [records, 6]: the list, then the
        fields of `WaitRecord`.

        Tile i is in list `of[i]`, and is first read in step `steps[i]`; without steps, all waits come before step 0.
        Lists ascend, and records of a list are in the order of their steps. Adjacent signals of a step share a record.
        """
        step = np.zeros(read.size, dtype=np.int64) if steps is None else steps
        order = np.lexsort((step, read, of))
        of, read, step = of[order], read[order], step[order]
        is_first = np.ones(read.size, dtype=np.bool_)
        is_first[1:] = (np.diff(of) != 0) | (np.diff(read) != 0)
        of, read, step = of[is_first], read[is_first], step[is_first]
        if steps is not None:
            order = np.lexsort((read, step, of))
            of, read, step = of[order], read[order], step[order]
        return np.column_stack(self._columns(of, read, step))

    def records(self, signals: Ints, step: Ints | int) -> list[WaitRecord]:
        """Wait records for `signals` in order, each before its k-step. Adjacent signals of a step share a record."""
        columns = self._columns(np.zeros_like(signals), signals, np.broadcast_to(step, signals.shape))
        return list(zip(*(column.tolist() for column in columns[1:]), strict=True))

    def _columns(self, of: Ints, signals: Ints, step: Ints) -> tuple[Ints, ...]:
        """The list of each record, and the fields of `WaitRecord`; signals of different lists share no record."""
        posts = self.num_posts[signals - self.banks[0].first]
        is_new = np.ones(signals.size, dtype=np.bool_)
        is_new[1:] = (np.diff(of) != 0) | (np.diff(signals) != 1) | (np.diff(step) != 0) | (np.diff(posts) != 0)
        begin = np.flatnonzero(is_new)
        end = np.append(begin[1:], signals.size)[: begin.size] - 1
        return of[begin], signals[begin], signals[end] + 1, posts[begin], posts[begin], step[begin]


def column_groups(granularity: Granularity, width: int, num_cols: int) -> list[int]:
    """[tile columns] the group of each column."""
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
    """The signals of a producer with a grid of `num_rows` x `num_cols` tiles, numbered from `first`."""
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
    """(begin, end, value) of each run of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)]
    yield from ((a, b, int(counts[a])) for a, b in pairwise(edges))
