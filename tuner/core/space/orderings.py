"""The legal orderings of one tiling as a sequence: values per axis, and the ordering for an index."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import overload

from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    Ordering,
    Raster,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)

#: Share of the draws with the default run-ahead.
PLAIN_RUN_AHEADS = 0.85
#: Share of the draws that split the tail into even shares, if possible; and among the other draws, share of those that
#: split only the tail.
EVEN_SHARES, SPLIT_TAILS = 0.3, 0.85
#: (granularity, sync width, wait position, split order).
Sync = tuple[Granularity, int, WaitPosition, SplitOrder]
#: (assignment, CTAs per SM, reserved SMs).
GridAssignment = tuple[Assignment, int, int]


@dataclass(frozen=True, kw_only=True)
class Merge:
    """A legal interleave for tiles of some size, and the legal values of the axes that depend only on it."""

    interleave: Interleave
    #: The legal rasters of each op.
    rasters: tuple[tuple[Raster, ...], ...]
    syncs: tuple[tuple[Granularity, int], ...]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Legal values per axis of the orderings with one interleave; any combination is legal."""

    merge: Merge
    #: The signals of the merge, with every legal wait position; strided parts if they wait by slice.
    syncs: tuple[Sync, ...]
    #: Run-aheads, percent; the plainest first.
    run_aheads: tuple[int, ...]
    assignments: tuple[GridAssignment, ...]
    #: Whether the parts of tiles are ordered part by part.
    sweeps: tuple[bool, ...]
    split_tiles: SplitTiles

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        others = (self.syncs, self.assignments, self.sweeps)
        return (len(self.run_aheads), *map(len, self.merge.rasters), *map(len, others))

    def ordering(self, index: int) -> Ordering:
        digits = []
        for size in reversed(self.sizes):
            index, digit = divmod(index, size)
            digits.append(digit)
        run_ahead, *rasters, sync, assigned, sweep = reversed(digits)
        granularity, sync_width, wait_position, split_order = self.syncs[sync]
        assignment, ctas_per_sm, reserved_sms = self.assignments[assigned]
        return Ordering(
            rasters=tuple(values[digit] for values, digit in zip(self.merge.rasters, rasters, strict=True)),
            interleave=self.merge.interleave,
            granularity=granularity,
            sync_width=sync_width,
            assignment=assignment,
            ctas_per_sm=ctas_per_sm,
            reserved_sms=reserved_sms,
            part_major=self.sweeps[sweep],
            wait_position=wait_position,
            split_order=split_order,
            run_ahead=self.run_aheads[run_ahead],
            split_tiles=self.split_tiles,
        )


class Orderings(Sequence[Ordering]):
    """The legal orderings of one tiling, created when indexed."""

    def __init__(self, choices: tuple[Choices, ...]) -> None:
        self._choices = choices
        self._counts = [prod(choice.sizes) for choice in choices]
        self._count = sum(self._counts)
        self._tails, self._streams = (
            [i for i, choice in enumerate(choices) if choice.split_tiles is which]
            for which in (SplitTiles.TAIL, SplitTiles.STREAM)
        )

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Ordering: ...
    @overload
    def __getitem__(self, index: slice) -> list[Ordering]: ...
    def __getitem__(self, index: int | slice) -> Ordering | list[Ordering]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        for choice, count in zip(self._choices, self._counts, strict=True):
            if index < count:
                return choice.ordering(index)
            index -= count
        raise IndexError(index)

    def draw(self, rng: random.Random) -> int:
        """A random index: all interleaves are equally likely, though some leave the rasters little choice; mostly
        with the default run-ahead and a split tail."""
        if self._streams and rng.random() < EVEN_SHARES:
            chosen = rng.choice(self._streams)
        elif self._tails and rng.random() < SPLIT_TAILS:
            chosen = rng.choice(self._tails)
        else:
            chosen = rng.randrange(len(self._counts))
        index = rng.randrange(self._counts[chosen])
        if rng.random() < PLAIN_RUN_AHEADS:
            index %= self._counts[chosen] // len(self._choices[chosen].run_aheads)
        return sum(self._counts[:chosen]) + index

    def draw_unseen(self, rng: random.Random, seen: set[int]) -> int:
        """A random index that is not in `seen`, to which it is added."""
        index = self.draw(rng)
        while index in seen:
            index = (index + 1) % len(self)
        seen.add(index)
        return index
