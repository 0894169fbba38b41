"""The cases of the protocol test: small chains of unusual shapes, and all ways to order and launch them."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import replace
from itertools import product
from typing import Any

from tests.support.cases import SYNCS_BY_NAME
from tests.support.covering import covering_sample
from tests.support.on_card import schedule
from tests.support.spaces import space_of
from tuner.core.legal.legality import kind_problem
from tuner.core.legal.ordering_rules import position_problem
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import (
    ASSIGNMENTS,
    Assignment,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.ordering_values import SYNCS
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair

#: Random cases, of which a covering sample is used.
NUM_DRAWN = 4000


#: CTAs of the grid of `few_ctas`.
NUM_FEW = 8


def _tiling(*tiles: tuple[int, int, int], warps: int = 4, split: tuple[int, ...] = ()) -> Tiling:
    return schedule(tiles, warps=warps, split=split).tiling


#: The tile grids have odd numbers of columns, so that words of tiles in different rows share cache lines.
PAIR = ffn_pair(m=320, d_in=512, d_hidden=1120, d_out=736)
FEW_ROWS = ffn_pair(m=160, d_in=512, d_hidden=1120, d_out=736)
NARROW = ffn_pair(m=640, d_in=64, d_hidden=96, d_out=160)
RAGGED = ffn_pair(m=333, d_in=100, d_hidden=1003, d_out=500)
THREE = Workload(
    kind=WorkloadKind.CHAIN,
    ops=(
        GemmOp(name="a", m=230, n=544, k=128),
        GemmOp(name="b", m=230, n=600, k=544, source="a"),
        GemmOp(name="c", m=230, n=320, k=600, source="b"),
    ),
)
CASES: dict[str, tuple[Workload, Tiling]] = {
    "a pair": (PAIR, _tiling((16, 32, 64), (16, 32, 64))),
    "tall producers": (RAGGED, _tiling((64, 32, 64), (16, 64, 32))),
    "tall readers": (RAGGED, _tiling((16, 64, 32), (48, 32, 64))),
    "narrow rows": (NARROW, _tiling((16, 32, 32), (16, 32, 32))),
    "parts": (FEW_ROWS, _tiling((16, 32, 64), (16, 32, 64), split=(2, 8))),
    "parts of unequal tiles": (RAGGED, _tiling((32, 64, 32), (16, 64, 32), warps=8, split=(3, 4))),
    "three ops": (THREE, _tiling((32, 32, 32), (16, 64, 32), (32, 32, 32), split=(1, 3, 2))),
}

#: The cases in which waits are broken, and the tiles that are split in each.
FAULTY = [
    ("a pair", SplitTiles.ALL),
    ("tall producers", SplitTiles.ALL),
    ("tall readers", SplitTiles.ALL),
    ("parts", SplitTiles.ALL),
    ("parts", SplitTiles.TAIL),
    ("parts", SplitTiles.STREAM),
]


def _axes(candidate: Candidate) -> list[Hashable]:
    assert candidate.schedule is not None
    ordering = candidate.schedule.ordering
    sync = f"{ordering.granularity}{ordering.sync_width} {ordering.wait_position}"
    assigned = f"{ordering.assignment} {ordering.partition}"
    grid = f"{ordering.ctas_per_sm} {ordering.reserved_sms}"
    parts = f"{ordering.split_tiles} {ordering.split_order} {ordering.part_major}"
    return [candidate.plan_kind, *ordering.rasters, ordering.interleave, sync, parts, assigned, grid]


def candidates(case: str, gpu: Gpu) -> list[Candidate]:
    """A pairwise covering sample of the legal orderings and of the ways to launch them on the GPU. If a draw may split
    only the tail, it usually does; half of these cases split all tiles instead."""
    workload, tiling = CASES[case]
    space = space_of(workload, gpu)
    legal, may_split_all = space.orderings(tiling), SplitTiles.ALL in space.split_tiles(tiling)
    rng = random.Random(0)
    ours = (kind for kind in PlanKind if kind.is_ours and not kind.is_in_runs and not kind.is_joined)
    kinds = [kind for kind in ours if kind_problem(workload, gpu, kind) is None]
    drawn = []
    for _ in range(NUM_DRAWN):
        kind, ordering = rng.choice(kinds), legal[legal.draw(rng)]
        if may_split_all and rng.random() < 0.5:
            ordering = replace(ordering, split_tiles=SplitTiles.ALL)
        if kind is not PlanKind.TWO_STREAMS or ordering.assignment.is_static:
            drawn.append(Candidate(plan_kind=kind, schedule=Schedule.of(tiling=tiling, ordering=ordering)))
    return covering_sample(drawn, _axes)


#: Cases that have no such tail.
UNTAILED = {
    SplitTiles.ALL: (),
    SplitTiles.TAIL: (Assignment.SHARES,),
    SplitTiles.TAILS: (Assignment.SHARES,),
    SplitTiles.STREAM: tuple(set(ASSIGNMENTS) - {Assignment.STATIC}),
}


def plain_schedules(case: str, split_tiles: SplitTiles = SplitTiles.ALL) -> dict[str, Schedule]:
    """Producer first, for every granularity, wait position and assignment that can split these tiles."""
    graph = tile_graph(*CASES[case])
    return {
        f"{granularity}{width} {position} {assignment}": _ordered(
            case,
            granularity=granularity,
            sync_width=width,
            wait_position=position,
            assignment=assignment,
            split_tiles=split_tiles,
        )
        for (granularity, width), position in product((*SYNCS, *SYNCS_BY_NAME), WaitPosition)
        if position_problem(graph, granularity, width, position) is None
        for assignment in ASSIGNMENTS
        if assignment not in UNTAILED[split_tiles]
    }


def few_ctas(case: str, gpu: Gpu, split_tiles: SplitTiles = SplitTiles.ALL) -> list[Schedule]:
    """Tile row by tile row on a few CTAs, so that each CTA soon reads the same tiles again."""
    by_row, reserved = Interleave(kind=InterleaveKind.BANDS, rows=1), gpu.num_sms - NUM_FEW
    return [
        _ordered(case, interleave=by_row, assignment=assignment, reserved_sms=reserved, split_tiles=split_tiles)
        for assignment in (Assignment.STATIC, Assignment.TICKET)
        if assignment not in UNTAILED[split_tiles]
    ]


def _ordered(case: str, **changes: Any) -> Schedule:
    tiling = CASES[case][1]
    rasters = tuple(Raster() for _ in tiling.tiles)
    return Schedule.of(tiling=tiling, ordering=Ordering(rasters=rasters, **changes))
