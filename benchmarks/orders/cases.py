"""The comparison: pairs at many numbers of rows, candidate tilings, and orderings of the chosen one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from benchmarks.common.rows import PLAIN
from benchmarks.common.setting import problem_of
from tuner.core.problem.workload import Activation, Workload, WorkloadKind
from tuner.core.schedule.ordering import (
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
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Problem
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair

D_IN, D_HIDDEN = PLAIN["llama3-8b"]
#: Maximum orderings of a tiling.
NUM_ORDERINGS = 30
#: Seed of the draw that adds orderings.
SEED = 0

RASTERS = (
    Raster(),
    Raster(kind=RasterKind.COLUMN),
    *(Raster(kind=RasterKind.GROUPED, width=width) for width in (4, 8)),
    Raster(kind=RasterKind.PANEL, width=8),
    Raster(kind=RasterKind.SNAKE, width=4),
    Raster(kind=RasterKind.MORTON),
    Raster(kind=RasterKind.HILBERT),
)
INTERLEAVES = (
    Interleave(),
    *(Interleave(kind=InterleaveKind.BANDS, rows=rows) for rows in (1, 2, 4)),
    Interleave(kind=InterleaveKind.BANDS, rows=2, lag=1),
    Interleave(kind=InterleaveKind.BANDS, rows=1, chunks=2),
    Interleave(kind=InterleaveKind.HALF_ROWS),
)
SYNCS = (
    (Granularity.ROW, 1),
    (Granularity.TILE, 1),
    (Granularity.CHUNK, 4),
    (Granularity.BATCH, 2),
    (Granularity.BARRIER, 1),
)
#: (assignment, eighths of a partition).
ASSIGNMENTS = ((Assignment.STATIC, 0), (Assignment.SHARES, 0), (Assignment.TICKET, 0), (Assignment.STATIC, 4))

#: Percentages of the ring that are filled ahead of a wait, in addition to 100.
RUN_AHEADS = (0, 50)

#: Rows -> tilings of the engine `mma`, which cannot be calculated: (m, n, k) per op, stages, warps.
_MMA = {
    64: ((((64, 112, 64), (64, 32, 64)), 6, 4), (((64, 64, 128), (64, 32, 128)), 5, 4)),
    512: ((((128, 128, 64), (128, 128, 64)), 4, 8), (((128, 128, 32), (128, 64, 32)), 5, 8)),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload at some number of rows, on one engine."""

    #: Name of the workload, e.g. ``llama3-8b``.
    pair: str
    engine: Engine
    workload: Workload

    @property
    def m(self) -> int:
        """Rows."""
        return self.workload.tile_ops[0].m

    @property
    def name(self) -> str:
        """e.g. ``llama3-8b/wgmma/m64``."""
        return f"{self.pair}/{self.engine}/m{self.m}"

    @property
    def problem(self) -> Problem:
        """A cold problem, in the regime for its number of rows."""
        return problem_of(self.workload)


def _plain(m: int, engine: Engine = Engine.WGMMA) -> Case:
    pair = ffn_pair(m=m, d_in=D_IN, d_hidden=D_HIDDEN, d_out=D_IN, activation=Activation.RELU)
    return Case(pair="llama3-8b", engine=engine, workload=pair)


def _gated(m: int) -> Case:
    pair = ffn_pair(m=m, d_in=D_IN, d_hidden=D_HIDDEN, d_out=D_IN, activation=Activation.SILU, gated=True)
    return Case(pair="llama3-8b-swiglu", engine=Engine.WGMMA, workload=pair)


def _alone(m: int) -> Case:
    up = GemmOp(name="up", m=m, n=D_HIDDEN, k=D_IN)
    return Case(pair="llama3-8b-up-alone", engine=Engine.WGMMA, workload=Workload(kind=WorkloadKind.CHAIN, ops=(up,)))


#: In the order of measurement, so that a short run includes the plain pair.
CASES = (
    *(_plain(m) for m in (64, 128, 256, 512, 1024, 2048, 4096)),
    _alone(2048),
    *(_gated(m) for m in (64, 512)),
    *(_plain(m, Engine.MMA) for m in _MMA),
)


def tilings_of(case: Case, space: Space) -> list[Tiling]:
    """Good tilings of the case: the space's first ones, without split tails; for `mma`, listed ones. The orderings of
    the tiling that is fastest in row-major order are compared."""
    if case.engine is Engine.WGMMA:
        return [tiling for tiling in space.guesses if space.split_tiles(tiling)[0] is SplitTiles.ALL]
    return [
        Tiling(tiles=tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles), num_stages=stages, num_warps=warps)
        for tiles, stages, warps in _MMA[case.m]
    ]


def row_major(tiling: Tiling) -> Schedule:
    """Op after op, row by row, assigned round-robin, with a signal per row: the simplest order."""
    return Schedule.of(
        tiling=tiling, ordering=Ordering(rasters=(Raster(),) * len(tiling.tiles), assignment=Assignment.STATIC)
    )


def orderings_of(space: Space, tiling: Tiling) -> list[Schedule]:
    """Row-major order first, then all orderings that differ from it in one axis, then a random selection of those that
    differ in several; all give different plans."""
    base = row_major(tiling)
    crosses = [base.but(ordering=ordering) for ordering in _combinations(base.ordering)]
    random.Random(SEED).shuffle(crosses)
    found: dict[Schedule, None] = {base: None}
    for schedule in (*(base.but(ordering=one) for one in _changes(base.ordering)), *crosses):
        if len(found) == NUM_ORDERINGS:
            break
        if space.is_legal(schedule):
            found.setdefault(schedule)
    return list(found)


def _changes(base: Ordering) -> Iterator[Ordering]:
    num_ops = len(base.rasters)
    yield from (replace(base, rasters=(raster,) * num_ops) for raster in RASTERS)
    yield from (replace(base, interleave=interleave) for interleave in INTERLEAVES)
    yield from (replace(base, granularity=sync, sync_width=width) for sync, width in SYNCS)
    yield from (replace(base, assignment=assignment, partition=eighths) for assignment, eighths in ASSIGNMENTS)
    yield replace(base, part_major=True)
    yield from (replace(base, run_ahead=percent) for percent in RUN_AHEADS)
    for sync, width in SYNCS:
        yield replace(base, granularity=sync, sync_width=width, wait_position=WaitPosition.SLICE)


def _combinations(base: Ordering) -> Iterator[Ordering]:
    rasters = product(RASTERS, repeat=len(base.rasters))
    for chosen, interleave, (sync, width), (assignment, eighths) in product(rasters, INTERLEAVES, SYNCS, ASSIGNMENTS):
        yield replace(
            base,
            rasters=chosen,
            interleave=interleave,
            granularity=sync,
            sync_width=width,
            assignment=assignment,
            partition=eighths,
        )
