"""First guesses: calculated tilings that fill the GPU, and the simulator's choices from random draws.

Forecasts only sort the first few candidates. They are never taken as the truth: cards differ from them, and so does the
simulated card, on purpose, by more than the best schedules differ from each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product, tee, zip_longest
from operator import itemgetter
from typing import Any

from tuner.core.legal.wgmma import stage_bytes
from tuner.core.model import forecast
from tuner.core.model.forecast import least_us
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
from tuner.search.meanwhile import Begin, num_forks

#: Number of drawn schedules that are forecast.
NUM_FORECASTS = 96
#: How many of the forecast schedules are tried.
NUM_DRAWN = 6
#: Maximum number of a space's own guesses that are tried before the drawn ones.
NUM_GUESSES = 10
#: The rasters of first guesses. With many rows, the operands of a whole column do not stay in the L2, but those of a
#: group do.
RASTERS = (ROW, COLUMN, *(Raster(kind=RasterKind.GROUPED, width=width) for width in (4, 8, 16)))
#: Maximum number of parts of a tile in guesses without parts whose last wave is split into equal shares.
STREAM_PARTS = (2, 3)
#: Tiles per signal in guesses without parts that wait by slice.
SLICE_TILES = 8
#: Up to this number of rows, tasks of first guesses wait by slice. In jobs on cards, that was faster than waiting for
#: the row in 35 of 41 shapes without parts, by 2 % in the median (docs/findings/README.md).
SLICED_ROWS = 128
#: Approximate bytes of weights that are requested ahead while a task waits.
AHEAD_WINDOW_BYTES = 40_960
#: Maximum number of first guesses: a space's own, one with strided parts or equal shares, one that waits differently,
#: and the drawn ones.
NUM_SEEDS = NUM_GUESSES + 2 + NUM_DRAWN
#: Names of calls that can be made in advance; the first and the last name also need the number of a tiling.
_PLAIN, _PARTS, _VARIED = "plain", "parts", "varied"


def forecast_us(space: Space, candidate: Candidate, limit_us: float = math.inf) -> float:
    """The simulator's time, microseconds; inf for refused candidates, so that they come last, and for candidates that
    take longer than `limit_us`."""
    try:
        return forecast.forecast_us(space.workload, space.gpu, candidate, limit_us)
    except (IllegalSchedule, PlanError):
        return float("inf")


def seed_schedules(
    space: Space, drawn: Callable[[], Iterable[Schedule]], begin: Begin | None = None
) -> Iterator[Schedule]:
    """The order is: the space's own guesses, each in its best simple order, which with few rows waits by slice; the
    best of them with strided parts, or for independent ops with the last wave in equal shares; the best one without
    parts with the other way to wait; then the guesses of `drawn`.

    Without duplicates. Each is computed on demand, since with many tiles the forecasts of all take half a minute; or in
    advance in background work that `begin` starts.
    """
    ahead = _Ahead(space, space.guesses[:NUM_GUESSES], begin)
    given: dict[Schedule, None] = {}

    def fresh(schedules: Iterable[Schedule]) -> Iterator[Schedule]:
        for schedule in schedules:
            if schedule not in given:
                given[schedule] = None
                yield schedule

    plain = list[Schedule]()
    is_sliced = max(op.m for op in space.workload.tile_ops) <= SLICED_ROWS
    for index in range(ahead.num_tilings):
        best = ahead.plain(index)
        plain += best
        yield from fresh(one for first in best for one in ((is_sliced and _eager(space, first)) or [first]))
    yield from fresh(ahead.in_parts())
    yield from fresh(ahead.varied(given))
    otherwise = (one for one in plain if not one.tiling.split_k) if is_sliced else _sliced(space, plain)
    yield from fresh(_shortest(space, otherwise))
    yield from fresh(drawn())


class _Ahead:
    """Parts of the first guesses that do not depend on each other. They are computed on demand or in the background,
    with the same result."""

    def __init__(self, space: Space, tilings: Sequence[Tiling], begin: Begin | None) -> None:
        """Starts the background work with `begin`, which may run several calls at the same time."""
        self._space, self._tilings = space, tilings
        self.num_tilings = len(tilings)
        #: By the name of a call, the function that returns its result.
        self._taken: dict[Hashable, Callable[[], Any]] = {}
        calls: dict[Hashable, Callable[[], Any]] = {
            **{(_PLAIN, index): partial(_best_plain, space, tiling) for index, tiling in enumerate(tilings)},
            _PARTS: partial(part_guesses, space.workload, space.gpu, space.is_legal),
            **{(_VARIED, index): partial(_timed, space, tiling) for index, tiling in enumerate(tilings)},
        }
        num_at_once = min(num_forks(), len(tilings)) if begin else 0
        for first in range(num_at_once):
            names = list(calls)[first::num_at_once]
            take = begin({name: calls[name] for name in names}) if begin else None
            self._taken |= {name: partial(take, name) for name in names if take}

    def plain(self, index: int) -> list[Schedule]:
        """A tiling's best simple order, if any."""
        take = self._taken.get((_PLAIN, index))
        return take() if take else _best_plain(self._space, self._tilings[index])

    def in_parts(self) -> list[Schedule]:
        """The guesses with tiles in parts."""
        take = self._taken.get(_PARTS)
        return take() if take else part_guesses(self._space.workload, self._space.gpu, self._space.is_legal)

    def varied(self, given: Collection[Schedule]) -> list[Schedule]:
        """The schedule with the shortest forecast among those with strided parts or equal shares, of all tilings;
        `given` ones are left out."""
        if not self._taken:
            others = (one for tiling in self._tilings for one in _varied(self._space, tiling) if one not in given)
            return _shortest(self._space, others)
        timed = [one for index in range(self.num_tilings) for one in self._taken[_VARIED, index]()]
        return [one for _, one in sorted((one for one in timed if one[1] not in given), key=itemgetter(0))[:1]]


def _best_plain(space: Space, tiling: Tiling) -> list[Schedule]:
    """The best simple order of a tiling, with the best rings; neighbours are placed together where that helps."""
    return [side_by_side(space, one) or one for one in _with_best_rings(space, _plain(space, tiling))]


def _varied(space: Space, tiling: Tiling) -> Iterator[Schedule]:
    return _streamed(space, tiling) if space.workload.is_independent else _strided(space, tiling)


def _timed(space: Space, tiling: Tiling) -> list[tuple[float, Schedule]]:
    """The varied schedules of a tiling, with their forecasts."""
    return [(forecast_us(space, in_fewest_launches(space.workload, one)), one) for one in _varied(space, tiling)]


def drawn_guesses(space: AnySpace, seed: int) -> list[Schedule]:
    """Schedules of a random draw with the shortest forecasts, each with a different tiling: the best of each engine,
    then the next best of all; only for tile ops."""
    tiles = space.tiles
    return _best_drawn(tiles, tiles.sample(random.Random(f"{seed}/seeds"), NUM_FORECASTS)) if tiles else []


def first_guesses(
    space: AnySpace,
    seed: int,
    drawn: Callable[[], Iterable[Schedule]] | None = None,
    begin: Begin | None = None,
) -> Iterator[Schedule]:
    """The first guesses of a search with `seed`. `drawn` returns the drawn guesses if another process already computes
    them, and `begin` starts background work for the rest.
    """
    drawn = drawn or partial(drawn_guesses, space, seed)
    if not isinstance(space, JointSpace):
        return seed_schedules(space, drawn, begin)
    tiles = seed_schedules(space.tiles, drawn, begin) if space.tiles else iter(())
    if len(space.own) == 1:
        return search_of(space.own[0].op).guesses(space.around(0), tiles)
    return _of_each(space, tiles)


def _of_each(space: JointSpace, tiles: Iterator[Schedule]) -> Iterator[Schedule]:
    """The guesses of each launch op in turn, combined with the first guesses of the others, without duplicates."""
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
    """The schedule's kernel and grid in the order of each policy, without duplicates: at most three."""
    return tuple(dict.fromkeys(policy_schedules(space.workload, space.gpu, best).values()))


def waiting_guesses(space: Space, best: Schedule) -> list[Schedule]:
    """The best first guess with different ways to wait: intermediates read in band, few bytes of weights loaded ahead,
    or both. Also with tiles of small ops for which the ring holds more of their weights, and with stages twice as deep.
    Forecasts do not resolve these differences."""
    if best.tiling.engine is not Engine.WGMMA:
        return []
    in_band, wide = read_in_band(best), [best.but(tiling=tiling) for tiling in space.widened(best.tiling)]
    deep = [one.but(tiling=tiling) for one in (wide or [best]) for tiling in space.twice_as_deep(one.tiling)]
    paced = [_paced(space, one) for one in (in_band, best, *wide)]
    deepest = _shortest(space, (_paced(space, one) for one in deep if space.is_legal(one)))
    return [one for one in (in_band, *paced, *deepest) if space.is_legal(one)]


def _paced(space: Space, schedule: Schedule) -> Schedule:
    """The schedule with about `AHEAD_WINDOW_BYTES` of weights requested ahead while a task waits."""
    ahead = max(1, round(AHEAD_WINDOW_BYTES / stage_bytes(space.workload, schedule.tiling)[1]))
    return schedule.but(tiling=replace(schedule.tiling, ahead_window=ahead))


def by_slice(space: AnySpace, schedule: Schedule) -> list[Schedule]:
    """The kernel of a fused schedule with waits by slice, as in first guesses: each k-step of a tile without parts, or
    each part of a tile, waits for what it reads. Empty with launch ops, or if that is not legal."""
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
    """The schedule cut into runs in each way that the proof allows, shortest forecast first; only tile ops are cut."""
    if isinstance(space, JointSpace):
        behind = runs_by_forecast(space.tiles, schedule.but(launch_ops=())) if space.tiles else []
        return [one.but(launch_ops=schedule.launch_ops) for one in behind]
    try:
        ways = ranked_ways(space.workload, space.gpu, schedule)
    except IllegalSchedule:
        return []
    return [way.schedule for _, way in ways if way.plan_kind.is_in_runs and way.schedule]


def _shortest(space: Space, schedules: Iterable[Schedule]) -> list[Schedule]:
    """The first schedule with the shortest forecast, if there are any schedules. A simulation stops once it takes
    longer than the shortest so far."""
    best, best_us = list[Schedule](), math.inf
    for schedule in schedules:
        time_us = forecast_us(space, in_fewest_launches(space.workload, schedule), best_us)
        if not best or time_us < best_us:
            best, best_us = [schedule], time_us
    return best


def _best_drawn(space: Space, schedules: Iterable[Schedule]) -> list[Schedule]:
    """The schedules with the shortest forecast of each engine, then of all engines, each with a different tiling; at
    most `NUM_DRAWN`. Among equals, those drawn first.

    Branch and bound (Land and Doig, "An automatic method of solving discrete programming problems", Econometrica 28(3),
    1960): those with the least lower bounds are simulated first. A simulation stops, or does not begin, once the
    schedule is certain to take longer than the engine's shortest time and than enough others.
    """
    drawn = [(in_fewest_launches(space.workload, schedule), schedule) for schedule in schedules]
    by_bound = sorted((least_us(space.workload, space.gpu, one), number) for number, (one, _) in enumerate(drawn))
    first_of: dict[Tiling, int] = {}
    for number, (_, schedule) in enumerate(drawn):
        first_of.setdefault(schedule.tiling, number)
    by_tiling: dict[Tiling, tuple[float, int]] = {}
    of_engine: dict[Engine, float] = {}
    for bound_us, number in by_bound:
        candidate, schedule = drawn[number]
        tiling, engine = schedule.tiling, schedule.tiling.engine
        last_us = sorted(time_us for time_us, _ in by_tiling.values())[NUM_DRAWN - 1 : NUM_DRAWN]
        limit_us = max(of_engine.get(engine, math.inf), *last_us) if last_us else math.inf
        time_us = forecast_us(space, candidate, limit_us) if bound_us <= limit_us else math.inf
        of_engine[engine] = min(time_us, of_engine.get(engine, math.inf))
        by_tiling[tiling] = min((time_us, number), by_tiling.get(tiling, (math.inf, number)))
    places = sorted(by_tiling.items(), key=lambda item: (item[1][0], first_of[item[0]]))
    ranked = [drawn[number][1] for _, (_, number) in places]
    by_engine: dict[Engine, Schedule] = {}
    for schedule in ranked:
        by_engine.setdefault(schedule.tiling.engine, schedule)
    return list(dict.fromkeys((*by_engine.values(), *ranked)))[:NUM_DRAWN]


def _plain(space: Space, tiling: Tiling) -> list[Schedule]:
    """The schedule with the shortest forecast, if any, among those that run op after op with the raster that suits
    queues best, for each grid and each way to assign tasks. If weights have a window, parts are separate tasks,
    starting with the first parts of all tiles, and each part waits for a quarter of what a tile reads."""
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
    """The schedule with the stages and rings of the shortest forecast. Guesses for a chain include, for each op, the
    stages that would suit it if it used the rings alone."""
    others = [one.but(tiling=tiling) for one in plain for tiling in space.with_full_rings(one.tiling)]
    return _shortest(space, [*plain, *filter(space.is_legal, others)]) if others else plain


def _strided(space: Space, tiling: Tiling) -> Iterator[Schedule]:
    """Schedules op after op, in rows of tiles, by queue, on each grid. The parts of a tile advance along k together,
    and each quarter of k has its own wait. Forecasts do not resolve the different start times of parts, so one is
    tried."""
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
    """The ordering with the parts of a tile advancing along k together, and a wait for each quarter of k."""
    return replace(
        ordering,
        granularity=Granularity.CHUNK,
        sync_width=_quarter(graph),
        wait_position=WaitPosition.SLICE,
        split_order=SplitOrder.STRIDED,
    )


def _sliced(space: Space, plain: Iterable[Schedule]) -> Iterator[Schedule]:
    """The `plain` schedules without parts, with each k-step waiting for what it reads, so that a consumer begins while
    the slowest producers still work, and its ring has free slots for more weights."""
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
    """Schedules with the op with the longest tasks first, by queue, with the last wave's k-steps in equal shares."""
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
