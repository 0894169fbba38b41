"""Adapts a result for one shape to another: the kernel's tiles, rings and order. What it returns is always legal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

from tuner.core.legal.legality import check_kind, kind_problem, tiling_problem
from tuner.core.legal.sum_room import with_least_room, with_most_room
from tuner.core.legal.wgmma import COLUMNS
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.plan.order.rasters import ROW
from tuner.core.plan.order.split_k import num_tiles
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.schedule.levels import LaunchOpSchedule
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    SplitOrder,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.space.joint import AnySpace, JointSpace, joined_space_of
from tuner.core.space.space import Space
from tuner.core.trial.priors import Found
from tuner.errors import IllegalSchedule
from tuner.search.guesses.rings import deepest, depths, is_full
from tuner.search.guesses.seeds import forecast_us
from tuner.search.launch_op import search_of
from tuner.search.model.pool import canonical

#: Up to this number of tiles per column, an adapted tiling covers the new rows with as many tiles as before; beyond it,
#: the tiles keep their height. The same limit holds for the number of waves.
MOST_COVERING = 4
#: A tile's height is a multiple of one of these, depending on the engine and on which operand the weights are.
HEIGHTS = (8, 16, 32, 64, 128)


def adapt(space: AnySpace, found: Found) -> Candidate | None:
    """A result adapted to the space's shape and GPU; None if nothing similar is legal.

    Among several legal forms, the one with the shortest forecast."""
    if found.candidate.plan_kind.is_joined:
        return _adapt_joined(space, found)
    if isinstance(space, JointSpace):
        return _adapt_each(space, found)
    kind, schedule = found.candidate.plan_kind, found.candidate.schedule
    assert schedule is not None
    best, best_us = None, math.inf
    for tiling in dict.fromkeys(_forms(space, found.workload, schedule)):
        candidate = _first_legal(space, kind, tiling, schedule.ordering)
        if candidate is None:
            continue
        time_us = forecast_us(space, candidate, best_us)
        if best is None or time_us < best_us:
            best, best_us = candidate, time_us
    return best


def _adapt_joined(space: AnySpace, found: Found) -> Candidate | None:
    """A result for the op that computes all ops, adapted to that op of the space's workload."""
    own = joined_space_of(space.workload, space.gpu)
    try:
        workload, candidate = launched(found.workload, found.candidate)
    except IllegalSchedule:
        return None
    adapted = None if own is None else adapt(own, replace(found, workload=workload, candidate=candidate))
    return adapted and replace(adapted, plan_kind=found.candidate.plan_kind)


def _adapt_each(space: JointSpace, found: Found) -> Candidate | None:
    """The schedules of each launch op and of the tile ops, adapted separately. If the result has no launch ops, each
    launch op gets its first guess."""
    kind, schedule = found.candidate.plan_kind, found.candidate.schedule
    assert schedule is not None
    if kind_problem(space.workload, space.gpu, kind) is not None:
        return None
    own = list[LaunchOpSchedule]()
    for index, one in enumerate(space.own):
        search, around = search_of(one.op), space.around(index)
        if schedule.launch_ops:
            fitted = search.adapt(around, schedule.launch_ops[index], found.workload.launch_ops[index])
        else:
            fitted = search.first(around, schedule)
        if fitted is None:
            return None
        own.append(fitted)
    if space.tiles is None:
        return Candidate(plan_kind=kind, schedule=space.joined(own, None))
    alone = Candidate(plan_kind=kind, schedule=schedule.but(launch_ops=()))
    tiles = adapt(space.tiles, replace(found, candidate=alone))
    return tiles and Candidate(plan_kind=kind, schedule=space.joined(own, tiles.schedule))


def _forms(space: Space, before: Workload, schedule: Schedule) -> Iterator[Tiling]:
    """Legal tilings similar to the found one: with a height that fits the rows, and with the found height; for each,
    with a width that fits the columns, and with the found width. Rings are as deep as possible if they were before,
    otherwise at most as deep as before. Tilings that no search proposes are left out."""
    was_full = is_full(before, space.gpu, schedule.tiling)
    as_wide = _as_wide(space, before, space.as_offered(schedule.tiling))
    for high in (*_covering(space, before, as_wide), as_wide):
        for form in (_in_as_many_waves(space, before, schedule, high), high):
            form = with_least_room(space.workload, form)
            for fitting in islice(depths(space.workload, space.gpu, form), 1):
                is_as_deep = fitting.num_stages == form.num_stages
                full = deepest(space.workload, space.gpu, fitting) if was_full and is_as_deep else fitting
                yield with_most_room(space.workload, space.gpu, full)


def _as_wide(space: Space, before: Workload, tiling: Tiling) -> Tiling:
    """The tiling with as many rows of W per tile as possible, if an op has more or fewer columns than before."""
    tiles = []
    for op, other, tile in zip(space.workload.tile_ops, before.tile_ops, tiling.tiles, strict=True):
        rows = tile.n * other.rows_per_column
        same = op.rows_per_column == other.rows_per_column
        tiles.append(tile if same else replace(tile, n=max(1, rows // op.rows_per_column // COLUMNS) * COLUMNS))
    return replace(tiling, tiles=tuple(tiles))


def _covering(space: Space, before: Workload, tiling: Tiling) -> Iterator[Tiling]:
    """The tiling with the smallest tile_m that splits the rows into as many tiles as before, with any ring depth;
    nothing if there were many tiles."""
    rows, rows_before = (max(op.m for op in workload.tile_ops) for workload in (space.workload, before))
    pieces = -(-rows_before // tiling.tiles[0].m)
    if rows == rows_before or pieces > MOST_COVERING:
        return
    height = -(-rows // pieces)
    for multiple in HEIGHTS:
        tiles = tuple(replace(tile, m=-(-height // multiple) * multiple) for tile in tiling.tiles)
        covering = replace(tiling, tiles=tiles)
        if next(depths(space.workload, space.gpu, covering), None):
            yield covering
            return


def _in_as_many_waves(space: Space, before: Workload, schedule: Schedule, tiling: Tiling) -> Tiling:
    """The tiling with the narrowest tiles for which an op with a different number of columns takes as many waves of the
    same grid as before; tiles that took many waves do not change."""
    ordering, old = schedule.ordering, schedule.tiling

    def num_waves(workload: Workload, index: int, tile: Tile, of: Tiling) -> int:
        lanes = ordering.ctas_per_sm * space.gpu.num_clusters(of.cluster_size, ordering.reserved_sms)
        return -(-num_tiles(workload.tile_ops[index], tile) * of.num_parts(index) // lanes)

    def fitted(index: int, tile: Tile) -> Tile:
        num_columns, most = space.workload.tile_ops[index].n, num_waves(before, index, old.tiles[index], old)
        if num_columns == before.tile_ops[index].n or most > MOST_COVERING:
            return tile
        narrow = (replace(tile, n=n) for n in range(COLUMNS, num_columns + COLUMNS, COLUMNS))
        return next((one for one in narrow if num_waves(space.workload, index, one, tiling) <= most), tile)

    return replace(tiling, tiles=tuple(fitted(index, tile) for index, tile in enumerate(tiling.tiles)))


def _first_legal(space: Space, kind: PlanKind, tiling: Tiling, ordering: Ordering) -> Candidate | None:
    """The tiling in this order, or in the closest simplification of it that is legal."""
    if tiling_problem(space.workload, space.gpu, tiling) is not None:
        return None
    grids = space.grids(tile_graph(space.workload, tiling))
    own = (ordering.ctas_per_sm, ordering.reserved_sms)
    for plainer, (ctas, reserved) in product(_plainer(space, tiling, ordering), dict.fromkeys((own, *grids))):
        of_grid = replace(plainer, ctas_per_sm=ctas, reserved_sms=reserved)
        schedule = canonical(kind, space.made(tiling, of_grid))
        try:
            check_kind(space.workload, space.gpu, kind, schedule)
        except IllegalSchedule:
            continue
        if space.is_legal(schedule):
            return Candidate(plan_kind=kind, schedule=schedule)
    return None


def _plainer(space: Space, tiling: Tiling, ordering: Ordering) -> Iterator[Ordering]:
    """The ordering itself, then variants of it with more and more axes at their defaults. Orders given by users are
    left out, since searches do not produce them.
    """
    if ordering.interleave.kind is InterleaveKind.GIVEN:
        ordering = replace(ordering, interleave=Interleave())
    yield ordering
    ordering = replace(ordering, split_tiles=space.split_tiles(tiling)[0])
    yield ordering
    ordering = replace(ordering, part_major=False, split_order=SplitOrder.CONTIGUOUS)
    yield ordering
    ordering = replace(ordering, granularity=Granularity.ROW, sync_width=1, wait_position=WaitPosition.TASK)
    yield ordering
    ordering = replace(ordering, rasters=(ROW,) * len(tiling.tiles), interleave=Interleave(), partition=0)
    yield ordering
    yield replace(ordering, assignment=Assignment.STATIC)
