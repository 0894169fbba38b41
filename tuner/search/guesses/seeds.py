"""First guesses: calculated tilings that fill the GPU, and the simulator's choice from a random draw.

Forecasts only sort the first few candidates. They are never taken as the truth: cards differ from them, and so does the
simulated card, on purpose, by more than the best schedules differ from each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product, tee, zip_longest

from tuner.core.legal.wgmma import stage_bytes
from tuner.core.model import forecast
from tuner.core.model.runs import ranked_ways
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.rasters import COLUMN, ROW
from tuner.core.schedule.candidate import Candidate, in_fewest_launches
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.core.space.joint import AnySpace, JointSpace
from tuner.core.space.part_guesses import part_guesses
from tuner.core.space.policy_orders import policy_schedules
from tuner.core.space.space import Space, read_in_band
from tuner.errors import IllegalSchedule, PlanError
from tuner.search.guesses.side_by_side import side_by_side
from tuner.search.launch_op import search_of

#: Schedules that are forecast.
NUM_FORECASTS = 96
#: How many of these are tried.
NUM_DRAWN = 6
#: Maximum number of a space's own guesses that are tried before these.
NUM_GUESSES = 10
#: Rasters. With many rows, the operands of a whole column do not stay in the L2, but those of a group do.
RASTERS = (ROW, COLUMN, *(Raster(kind=RasterKind.GROUPED, width=width) for width in (4, 8, 16)))
#: Maximum parts of a tile, if a guess without parts splits its last wave into equal shares.
STREAM_PARTS = (2, 3)
#: Tiles per signal, if a guess without parts waits by slice.
SLICE_TILES = 8
#: Up to this many rows, tasks of first guesses wait by slice. In jobs on cards, that was faster than waiting for the
#: row in 35 of 41 shapes without parts, by 2 % in the median (docs/findings/README.md).
SLICED_ROWS = 128
#: Approximate bytes of weights that are requested ahead while a task waits.
AHEAD_WINDOW_BYTES = 40_960
#: Maximum number of first guesses: these, plus one with strided parts or equal shares, and one that waits differently.
NUM_SEEDS = NUM_GUESSES + 2 + NUM_DRAWN


def forecast_us(space: Space, candidate: Candidate, limit_us: float = math.inf) -> float:
    """The simulator's time, microseconds; inf for refused candidates, which come last, and for those that take longer
    than `limit_us`."""
    try:
        return forecast.forecast_us(space.workload, space.gpu, candidate, limit_us)
    except (IllegalSchedule, PlanError):
        return float("inf")


def seed_schedules(space: Space, drawn: Callable[[], Iterable[Schedule]]) -> Iterator[Schedule]:
    """The order is: the space's own guesses, each in its best simple order, which with few rows waits by slice; the
    best of them with strided parts, or for independent ops with the last wave in equal shares; the best one without
    parts with the other way to wait; then the guesses of `drawn`.

    Without duplicates. Each is computed on demand, since with many tiles the forecasts of all take half a minute.
    """
    guesses = space.guesses[:NUM_GUESSES]
    given: dict[Schedule, None] = {}

    def fresh(schedules: Iterable[Schedule]) -> Iterator[Schedule]:
        for schedule in schedules:
            if schedule not in given:
                given[schedule] = None
                yield schedule

    plain = list[Schedule]()
    is_sliced = max(op.m for op in space.workload.tile_ops) <= SLICED_ROWS
    for tiling in guesses:
        best = [side_by_side(space, one) or one for one in _with_best_rings(space, _plain(space, tiling))]
        plain += best
        yield from fresh(one for first in best for one in ((is_sliced and _eager(space, first)) or [first]))
    yield from fresh(part_guesses(space.workload, space.gpu, space.is_legal))
    varied = _streamed if space.workload.is_independent else _strided
    others = (schedule for tiling in guesses for schedule in varied(space, tiling) if schedule not in given)
    yield from fresh(_shortest(space, others))
    otherwise = (one for one in plain if not one.tiling.split_k) if is_sliced else _sliced(space, plain)
    yield from fresh(_shortest(space, otherwise))
    yield from fresh(drawn())


def drawn_guesses(space: AnySpace, seed: int) -> list[Schedule]:
    """Schedules of a random draw with the shortest forecasts, each with a different tiling: the best of each engine,
    then the next best of all; only for tile ops."""
    tiles = space.tiles
    return _best_drawn(tiles, tiles.sample(random.Random(f"{seed}/seeds"), NUM_FORECASTS)) if tiles else []


def first_guesses(
    space: AnySpace, seed: int, drawn: Callable[[], Iterable[Schedule]] | None = None
) -> Iterator[Schedule]:
    """The start of a search with this seed; `drawn` returns its drawn guesses if another process already computes
    them.
    """
    drawn = drawn or partial(drawn_guesses, space, seed)
    if not isinstance(space, JointSpace):
        return seed_schedules(space, drawn)
    tiles = seed_schedules(space.tiles, drawn) if space.tiles else iter(())
    if len(space.own) == 1:
        return search_of(space.own[0].op).guesses(space.around(0), tiles)
    return _of_each(space, tiles)


def _of_each(space: JointSpace, tiles: Iterator[Schedule]) -> Iterator[Schedule]:
    """The guesses of each launch op in turn, with the first guess for the others. Without duplicates."""
    searches = [search_of(one.op) for one in space.own]
    first = [search.first(space.around(index), None) for index, search in enumerate(searches)]
    settled = [one for one in first if one is not None]
    if len(settled) < len(first):
        return
    guesses = [
        search.guesses(space.around(index, (*settled[:index], *settled[index + 1 :])), of_tiles)
        for index, (search, of_tiles) in enumerate(zip(searches, tee(tiles, len(searches)), strict=True))
    ]
    given = set[Schedule]()
    for in_turn in zip_longest(*guesses):
        for one in in_turn:
            if one is not None and one not in given:
                given.add(one)
                yield one


def policy_guesses(space: Space, best: Schedule) -> tuple[Schedule, ...]:
    """The order of each policy for a schedule's kernel and grid, without duplicates: at most three."""
    return tuple(dict.fromkeys(policy_schedules(space.workload, space.gpu, best).values()))


def waiting_guesses(space: Space, best: Schedule) -> list[Schedule]:
    """The best first guess with other ways to wait: intermediates read in band, few bytes of weights loaded ahead, or
    both. Also with tiles of small ops for which the ring holds more of their weights, and with stages twice as deep.
    Forecasts do not resolve these differences."""
    if best.tiling.engine is not Engine.WGMMA:
        return []
    in_band, wide = read_in_band(best), [best.but(tiling=tiling) for tiling in space.widened(best.tiling)]
    deep = [one.but(tiling=tiling) for one in (wide or [best]) for tiling in space.twice_as_deep(one.tiling)]
    paced = [_paced(space, one) for one in (in_band, best, *wide)]
    deepest = _shortest(space, (_paced(space, one) for one in deep if space.is_legal(one)))
    return [one for one in (in_band, *paced, *deepest) if space.is_legal(one)]


def _paced(space: Space, schedule: Schedule) -> Schedule:
    """With about this many bytes of weights requested ahead while a task waits."""
    ahead = max(1, round(AHEAD_WINDOW_BYTES / stage_bytes(space.workload, schedule.tiling)[1]))
    return schedule.but(tiling=replace(schedule.tiling, ahead_window=ahead))


def by_slice(space: AnySpace, schedule: Schedule) -> list[Schedule]:
    """The kernel of a fused schedule with waits by slice, like those of first guesses: in a tile without parts each
    k-step waits, otherwise each part, for what it reads. Empty with launch ops, or if that is not legal."""
    if not isinstance(space, Space):
        return []
    tiling, ordering = schedule.tiling, schedule.ordering
    if not tiling.split_k:
        return list(_sliced(space, [schedule]))
    found = schedule.but(ordering=_by_parts(tile_graph(space.workload, tiling), ordering))
    return [found] if space.is_legal(found) else []


def _eager(space: Space, schedule: Schedule) -> list[Schedule]:
    """The schedule by slice, unless its parts are separate tasks, since then a part waits only for what it reads."""
    return [] if schedule.ordering.part_major else by_slice(space, schedule)


def runs_by_forecast(space: AnySpace, schedule: Schedule) -> list[Schedule]:
    """A schedule in each cut into runs that the proof allows, shortest forecast first; only tile ops are cut."""
    if isinstance(space, JointSpace):
        behind = runs_by_forecast(space.tiles, schedule.but(launch_ops=())) if space.tiles else []
        return [one.but(launch_ops=schedule.launch_ops) for one in behind]
    try:
        ways = ranked_ways(space.workload, space.gpu, schedule)
    except IllegalSchedule:
        return []
    return [way.schedule for _, way in ways if way.plan_kind.is_in_runs and way.schedule]


def _shortest(space: Space, schedules: Iterable[Schedule]) -> list[Schedule]:
    """The first with the shortest forecast, if there is any. Simulations of the others stop at that time."""
    best, best_us = list[Schedule](), math.inf
    for schedule in schedules:
        time_us = forecast_us(space, in_fewest_launches(space.workload, schedule), best_us)
        if not best or time_us < best_us:
            best, best_us = [schedule], time_us
    return best


def _best_drawn(space: Space, schedules: Iterable[Schedule]) -> list[Schedule]:
    """The shortest forecast of each engine, then the shortest of all, each with a different tiling; at most
    `NUM_DRAWN`.

    Simulations stop at the engine's shortest time, or once enough others are shorter.
    """
    by_tiling: dict[Tiling, tuple[float, Schedule]] = {}
    of_engine: dict[Engine, float] = {}
    for schedule in schedules:
        tiling, engine = schedule.tiling, schedule.tiling.engine
        last_us = sorted(time_us for time_us, _ in by_tiling.values())[NUM_DRAWN - 1 : NUM_DRAWN]
        limit_us = max(of_engine.get(engine, math.inf), *last_us) if last_us else math.inf
        time_us = forecast_us(space, in_fewest_launches(space.workload, schedule), limit_us)
        of_engine[engine] = min(time_us, of_engine.get(engine, math.inf))
        if tiling not in by_tiling or time_us < by_tiling[tiling][0]:
            by_tiling[tiling] = time_us, schedule
    ranked = [schedule for _, schedule in sorted(by_tiling.values(), key=lambda item: item[0])]
    by_engine: dict[Engine, Schedule] = {}
    for schedule in ranked:
        by_engine.setdefault(schedule.tiling.engine, schedule)
    return list(dict.fromkeys((*by_engine.values(), *ranked)))[:NUM_DRAWN]


def _plain(space: Space, tiling: Tiling) -> list[Schedule]:
    """Op after op with the raster that suits queues best, by queue, first wave or ticket, on each grid: the one with
    the shortest forecast, if any. If weights have a window, parts are separate tasks, first parts of all tiles first,
    and each waits for a quarter of what a tile reads."""
    graph = tile_graph(space.workload, tiling)
    split_tiles = space.split_tiles(tiling)[0]
    in_parts = tiling.window and max(tiling.split_k, default=1) > 1 and split_tiles is SplitTiles.ALL
    queues, drawn = (Assignment.STATIC,), (Assignment.FIRST_WAVE, *(() if in_parts else (Assignment.TICKET,)))
    base = Ordering(rasters=(ROW,) * len(tiling.tiles), split_tiles=split_tiles)
    if in_parts:
        base = replace(base, part_major=True, granularity=Granularity.CHUNK, sync_width=_quarter(graph))

    def legal(
        rasters: Iterable[Raster], assignments: Iterable[Assignment], num_grids: int | None = None
    ) -> Iterator[Schedule]:
        for raster, assigned, (ctas, reserved) in product(rasters, assignments, space.grids(graph)[:num_grids]):
            of_ops = (raster,) * len(tiling.tiles)
            ordering = replace(base, rasters=of_ops, assignment=assigned, ctas_per_sm=ctas, reserved_sms=reserved)
            if space.is_legal(schedule := space.made(tiling, ordering)):
                yield schedule

    best = _shortest(space, legal(RASTERS, queues, 1))
    raster = best[0].ordering.rasters[0] if best else ROW
    return _shortest(space, legal((raster,), (*queues, *drawn)))


def _with_best_rings(space: Space, plain: list[Schedule]) -> list[Schedule]:
    """The same with the stages and rings of the shortest forecast. A guess for a chain has stages that suit each op as
    if that op used the rings alone."""
    others = [one.but(tiling=tiling) for one in plain for tiling in space.with_full_rings(one.tiling)]
    return _shortest(space, [*plain, *filter(space.is_legal, others)]) if others else plain


def _strided(space: Space, tiling: Tiling) -> Iterator[Schedule]:
    """Op after op with rows of tiles, by queue, on each grid. The parts of a tile advance along k together, and each
    quarter of k has its own wait. Forecasts do not resolve the different start times of parts, so one is tried."""
    graph = tile_graph(space.workload, tiling)
    for ctas, reserved in space.grids(graph):
        ordering = Ordering(
            rasters=(Raster(),) * len(tiling.tiles),
            assignment=Assignment.STATIC,
            ctas_per_sm=ctas,
            reserved_sms=reserved,
        )
        if space.is_legal(schedule := space.made(tiling, _by_parts(graph, ordering))):
            yield schedule


def _by_parts(graph: TileGraph, ordering: Ordering) -> Ordering:
    """The same, with the parts of a tile advancing along k together, and a wait for each quarter of k."""
    return replace(
        ordering,
        granularity=Granularity.CHUNK,
        sync_width=_quarter(graph),
        wait_position=WaitPosition.SLICE,
        split_order=SplitOrder.STRIDED,
    )


def _sliced(space: Space, plain: Iterable[Schedule]) -> Iterator[Schedule]:
    """Schedules without parts in which each k-step waits for what it reads, so that a consumer begins while the slowest
    producers still work, and its ring has free slots for more weights."""
    for schedule in plain:
        if not schedule.tiling.split_k:
            ordering = replace(
                schedule.ordering,
                granularity=Granularity.CHUNK,
                sync_width=SLICE_TILES,
                wait_position=WaitPosition.SLICE,
            )
            if space.is_legal(sliced := schedule.but(ordering=ordering)):
                yield sliced


def _streamed(space: Space, tiling: Tiling) -> Iterator[Schedule]:
    """The op with the longest tasks first, by queue, with the last wave's k-steps in equal shares."""
    splits = [tiling.split_k] if tiling.split_k else [(parts,) * len(tiling.tiles) for parts in STREAM_PARTS]
    for split, kind in product(splits, (InterleaveKind.LONGEST_FIRST, InterleaveKind.PRODUCER_FIRST)):
        ordering = Ordering(
            rasters=(Raster(),) * len(tiling.tiles),
            interleave=Interleave(kind=kind),
            assignment=Assignment.STATIC,
            split_tiles=SplitTiles.STREAM,
        )
        if space.is_legal(schedule := space.made(replace(tiling, split_k=split), ordering)):
            yield schedule


def _quarter(graph: TileGraph) -> int:
    """Number of tiles in a quarter of the widest producer's row."""
    columns = max((graph.grids[edge.producer][1] for edge in graph.streams), default=1)
    return -(-columns // 4)
