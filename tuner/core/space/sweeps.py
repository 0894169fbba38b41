"""Sweeps of one schedule: its variants when one aspect changes and everything else stays fixed.

Each answers a question from the literature for a fixed kernel. *rasters*: the order of tiles: row, column, Z order,
Hilbert's curve, panels. *merges*: how the orders of dependent ops are merged: one after the other, half rows, bands.
*signals*: what a consumer waits for, and when. *launches*: the same kernel in one launch, in several, and on two
streams. *shares*: how tasks, and parts of tiles, reach CTAs.

Source for signals and launches: Jangda et al., "A Framework for Fine-Grained Synchronization of Dependent GPU Kernels"
(cuSync), CGO 2024. For shares: Osama et al., "Stream-K", PPoPP 2023.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import accumulate, product
from math import prod

from tuner.core.legal.legality import check_candidate
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate, in_fewest_launches
from tuner.core.schedule.given_order import grids_of
from tuner.core.schedule.ordering import (
    ASSIGNMENTS,
    MERGES,
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import any_space_of
from tuner.errors import IllegalSchedule, InvalidInput


class Sweep(StrEnum):
    """What a sweep varies."""

    RASTERS = "rasters"
    MERGES = "merges"
    SIGNALS = "signals"
    LAUNCHES = "launches"
    SHARES = "shares"


_WIDTHS = (2, 4, 8)
_BANDS = (1, 2, 4)
_CHUNKS = (2, 4, 8)
#: Granularities with a width.
_WIDE = (Granularity.CHUNK, Granularity.STRIDED, Granularity.BATCH)


#: For a sweep without a given schedule: the number of schedules to choose from, and the maximum ratio of the chosen
#: one's forecast to the shortest one.
_NUM_DRAWN, _NEAR_THE_SHORTEST = 20, 1.5
#: Maximum total tiles of the schedules that are forecast: a forecast's time is proportional to the number of tiles, and
#: this limit amounts to half a second.
_MAX_TILES = 20_000


def base_of(sweep: Sweep, workload: Workload, gpu: Gpu) -> Candidate:
    """A schedule for a sweep if none is given: along rows, op after op, with a queue per CTA. Among random schedules
    whose forecast is near the shortest, it is the fastest of those with the most variants.

    Raises:
        InvalidInput: no such schedule is legal.
    """
    drawn = any_space_of(workload, gpu).sample(random.Random(0), _NUM_DRAWN)
    plain = dict.fromkeys(_plain(workload, one) for one in drawn if one.tiling.tiles)
    legal = [one for one in plain if _is_legal(workload, gpu, one)]
    forecasts = {one: forecast_us(workload, gpu, one) for one in _of_fewest_tiles(workload, legal)}
    near_us = _NEAR_THE_SHORTEST * min(forecasts.values(), default=0.0)
    sizes = {one: len(swept(sweep, workload, gpu, one)) for one, us in forecasts.items() if us <= near_us}
    widest = [one for one, size in sizes.items() if size == max(sizes.values())]
    if not widest:
        raise InvalidInput("sweep", f"has no plain schedule of {workload.describe()}", "pass `schedules` too")
    return min(widest, key=forecasts.__getitem__)


def _of_fewest_tiles(workload: Workload, candidates: list[Candidate]) -> Iterator[Candidate]:
    """The candidates with the fewest tiles, until `_MAX_TILES` is reached; at least one."""
    num_tiles = {
        one: sum(map(prod, grids_of(workload, one.schedule))) for one in candidates if one.schedule is not None
    }
    ranked = sorted(num_tiles, key=num_tiles.__getitem__)
    before = accumulate((num_tiles[one] for one in ranked), initial=0)
    return (one for one, count in zip(ranked, before, strict=False) if count < _MAX_TILES)


def _plain(workload: Workload, schedule: Schedule) -> Candidate:
    rasters = (Raster(),) * len(schedule.tiling.tiles)
    return in_fewest_launches(workload, schedule.but(ordering=Ordering(rasters=rasters, assignment=Assignment.STATIC)))


def swept(sweep: Sweep, workload: Workload, gpu: Gpu, base: Candidate) -> list[Candidate]:
    """The candidate, then all of its legal variants in the sweep, each once."""
    found = dict.fromkeys((base, *_STUDIES[sweep](base)))
    return [one for one in found if one is base or _is_legal(workload, gpu, one)]


def _is_legal(workload: Workload, gpu: Gpu, candidate: Candidate) -> bool:
    try:
        check_candidate(workload, gpu, candidate)
    except IllegalSchedule:
        return False
    return True


def _ordered(base: Candidate, orderings: Iterator[Ordering]) -> Iterator[Candidate]:
    assert base.schedule is not None
    yield from (replace(base, schedule=base.schedule.but(ordering=ordering)) for ordering in orderings)


def _ordering(base: Candidate) -> Ordering:
    assert base.schedule is not None
    return base.schedule.ordering


def _rasters(base: Candidate) -> Iterator[Candidate]:
    """The variants in which all ops use the same raster."""
    before = _ordering(base)
    kinds = (kind for kind in RasterKind if kind is not RasterKind.EXACT)
    rasters = (Raster(kind=kind, width=width) for kind in kinds for width in (_WIDTHS if kind.row.has_width else (1,)))
    return _ordered(base, (replace(before, rasters=(one,) * len(before.rasters)) for one in rasters))


def _merges(base: Candidate) -> Iterator[Candidate]:
    merges = [Interleave(kind=kind) for kind in MERGES if kind is not InterleaveKind.BANDS]
    merges += [Interleave(kind=InterleaveKind.BANDS, rows=rows) for rows in _BANDS]
    return _ordered(base, (replace(_ordering(base), interleave=merge) for merge in merges))


def _signals(base: Candidate) -> Iterator[Candidate]:
    widths = {one: _CHUNKS if one in _WIDE else (1,) for one in Granularity}
    every = product(((one, width) for one in Granularity for width in widths[one]), WaitPosition)
    changed = (
        replace(_ordering(base), granularity=granularity, sync_width=width, wait_position=position)
        for (granularity, width), position in every
    )
    return _ordered(base, changed)


def _launches(base: Candidate) -> Iterator[Candidate]:
    return (replace(base, plan_kind=kind) for kind in PlanKind if kind.is_ours)


def _shares(base: Candidate) -> Iterator[Candidate]:
    every = product(ASSIGNMENTS, SplitTiles)
    changed = (replace(_ordering(base), assignment=one, split_tiles=split) for one, split in every)
    return _ordered(base, changed)


_STUDIES: Mapping[Sweep, Callable[[Candidate], Iterator[Candidate]]] = {
    Sweep.RASTERS: _rasters,
    Sweep.MERGES: _merges,
    Sweep.SIGNALS: _signals,
    Sweep.LAUNCHES: _launches,
    Sweep.SHARES: _shares,
}
