"""The schedules for evaluating the simulator: eight pairs, and for each a stratified draw, always the same one.

Strata: a few tilings in many orders, which separates the effect of order from that of the tiling; many tilings in two
orders each; and a search's first candidates, with neighbours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from benchmarks.common.rows import Row, choose_rows
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective

SEED = 20_26
#: Rows of `benchmarks.common.rows`, from decode to prefill; one of them is independent.
ROW_NAMES = (
    "decode-plain/llama3-8b/m16",
    "decode-plain/llama3-8b/m64",
    "middle/llama3-8b/m256",
    "prefill-plain/llama3-8b/m1024",
    "decode-swiglu/llama3-70b-tp8/m16",
    "prefill-swiglu/llama3-70b-tp8/m512",
    "middle/gpt3-tp8/m128",
    "independent/512x2048x4096+512x2048x8192/m512",
)
#: Per engine: tilings in many orders, and orders of each.
NUM_ORDERED, NUM_ORDERS = 3, 12
#: Per engine: tilings drawn at random, and orders of each.
NUM_DRAWN, NUM_ORDERS_OF_DRAWN = 24, 2
#: Neighbours of each first guess, in addition to its simplest orders.
NUM_NEIGHBOURS = 5
#: Larger plans are not drawn: their kernels are the slowest, and their simulation takes longest.
MAX_TASKS = 4096


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A schedule from the sample of a pair."""

    #: ``orders``, ``tilings`` or ``guesses``.
    stratum: str
    schedule: Schedule


def judged_rows() -> tuple[Row, ...]:
    """The pairs."""
    return tuple(row for name in ROW_NAMES for row in choose_rows((), (name,)))


class Pair(Protocol):
    """A pair from which schedules are drawn."""

    @property
    def name(self) -> str:
        """The name in files."""

    @property
    def workload(self) -> Workload:
        """The workload of the pair."""


def problem_of_row(row: Pair) -> Problem:
    """The problem, cold and in burst: under sustained load, a sample of each schedule takes a tenth of a second."""
    return Problem(workload=row.workload, objective=Objective(l2=CacheState.COLD, regime=Regime.BURST), seed=1)


def draw(workload: Workload, gpu: Gpu, name: str) -> list[Drawn]:
    """The schedules of the pair called `name`, without duplicates; within a stratum, they are in the order of the
    draw."""
    space, rng = Space(workload, gpu), random.Random(f"{SEED}/{name}")
    found: dict[Schedule, str] = {}
    for schedule in _guesses(space, rng):
        found.setdefault(schedule, "guesses")
    for engine in Engine:
        small = _small_tilings(space, engine, rng)
        ordered = [*space.guesses[:2]] if engine is Engine.WGMMA else []
        ordered += list(islice(small, NUM_ORDERED - len(ordered)))
        for tiling in ordered:
            for schedule in _orders(space, tiling, NUM_ORDERS, rng):
                found.setdefault(schedule, "orders")
        for tiling in islice(small, NUM_DRAWN):
            for schedule in _orders(space, tiling, NUM_ORDERS_OF_DRAWN, rng):
                found.setdefault(schedule, "tilings")
    return [Drawn(stratum=stratum, schedule=schedule) for schedule, stratum in found.items()]


def _small_tilings(space: Space, engine: Engine, rng: random.Random) -> Iterator[Tiling]:
    """The engine's tilings with few enough tasks, shuffled."""
    tilings = [tiling for tiling in space.tilings if tiling.engine is engine]
    rng.shuffle(tilings)
    return (tiling for tiling in tilings if tile_graph(space.workload, tiling).num_tasks <= MAX_TASKS)


def _orders(space: Space, tiling: Tiling, count: int, rng: random.Random) -> list[Schedule]:
    """Different orders of a tiling."""
    orderings = space.orderings(tiling)
    drawn: dict[int, None] = {}
    while len(drawn) < min(count, len(orderings)):
        drawn.setdefault(orderings.draw(rng))
    return [Schedule.of(tiling=tiling, ordering=orderings[index]) for index in drawn]


def _guesses(space: Space, rng: random.Random) -> Iterator[Schedule]:
    """A search's first candidates, by queue and by ticket, and their neighbours."""
    for tiling in space.guesses:
        rasters, split_tiles = (Raster(),) * len(tiling.tiles), space.split_tiles(tiling)[0]
        by_ticket = Schedule.of(tiling=tiling, ordering=Ordering(rasters=rasters, split_tiles=split_tiles))
        first = by_ticket.but(ordering=replace(by_ticket.ordering, assignment=Assignment.STATIC))
        yield from (one for one in (first, by_ticket) if space.is_legal(one))
        neighbours = space.neighbours(first)
        yield from rng.sample(neighbours, min(NUM_NEIGHBOURS, len(neighbours)))
