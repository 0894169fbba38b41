"""What the protocol test runs: small chains of odd shapes, and all ways of ordering and launching them."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import replace
from itertools import product
from typing import Any

from tests.covering import covering_sample
from tests.gpu.helpers import schedule
from tuner.core.axes import position_problem
from tuner.core.gpu import Gpu
from tuner.core.legality import kind_problem
from tuner.core.offers_ordering import SYNCS
from tuner.core.outcome import Candidate, PlanKind
from tuner.core.schedule import Assignment, Interleave, InterleaveKind, Schedule, SplitTiles, WaitPosition
from tuner.core.space import Space
from tuner.core.tiles import tile_graph
from tuner.core.tiling import Tiling
from tuner.core.workload import GemmOp, Workload, WorkloadKind, ffn_pair

#: Drawn, of which a covering sample is taken.
NUM_DRAWN = 4000


#: Of the grid of `few_ctas`.
NUM_FEW = 8


def _tiling(*tiles: tuple[int, int, int], warps: int = 4, split: tuple[int, ...] = ()) -> Tiling:
    return schedule(tiles, warps=warps, split=split).tiling


#: The grids of tiles have odd numbers of columns: tiles of different rows share the lines in which their words lie.
PAIR = ffn_pair(m=320, d_in=512, d_hidden=1120, d_out=736)
FEW_ROWS = ffn_pair(m=160, d_in=512, d_hidden=1120, d_out=736)
NARROW = ffn_pair(m=640, d_in=64, d_hidden=96, d_out=160)
RAGGED = ffn_pair(m=333, d_in=100, d_hidden=1003, d_out=500)
THREE = Workload(
    kind=WorkloadKind.CHAIN,
    ops=(
        GemmOp(name="a", m=200, n=544, k=128),
        GemmOp(name="b", m=200, n=600, k=544, source="a"),
        GemmOp(name="c", m=200, n=320, k=600, source="b"),
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


def _axes(candidate: Candidate) -> list[Hashable]:
    assert candidate.schedule is not None
    ordering = candidate.schedule.ordering
    sync = f"{ordering.granularity}{ordering.sync_width} {ordering.wait_position}"
    deal = f"{ordering.assignment} {ordering.partition}"
    grid = f"{ordering.ctas_per_sm} {ordering.reserved_sms}"
    return [candidate.plan_kind, *ordering.rasters, ordering.interleave, sync, ordering.split_order, deal, grid]


def candidates(case: str, gpu: Gpu) -> list[Candidate]:
    """A pairwise covering sample of the legal orderings and of the ways to launch them on the GPU."""
    workload, tiling = CASES[case]
    legal = Space(workload, gpu).orderings(tiling)
    rng = random.Random(0)
    kinds = [kind for kind in PlanKind if kind.is_ours and kind_problem(workload, gpu, kind) is None]
    drawn = []
    for _ in range(NUM_DRAWN):
        kind, ordering = rng.choice(kinds), legal[legal.draw(rng)]
        if ordering.split_tiles is SplitTiles.TAIL:
            continue  # units are all tiles of an op, or all their parts
        if kind is not PlanKind.TWO_STREAMS or ordering.assignment.is_static:
            drawn.append(Candidate(plan_kind=kind, schedule=Schedule(tiling=tiling, ordering=ordering)))
    return covering_sample(drawn, _axes)


def plain_schedules(case: str) -> dict[str, Schedule]:
    """Producer first, for every granularity, wait position and assignment."""
    graph = tile_graph(*CASES[case])
    return {
        f"{granularity}{width} {position} {assignment}": _ordered(
            case,
            granularity=granularity,
            sync_width=width,
            wait_position=position,
            assignment=assignment,
            partition=4 if assignment is Assignment.STEALING else 0,
        )
        for (granularity, width), position in product(SYNCS, WaitPosition)
        if position_problem(graph, granularity, width, position) is None
        for assignment in Assignment
    }


def few_ctas(case: str, gpu: Gpu) -> list[Schedule]:
    """Tile row by tile row on a few CTAs: each of them soon meets again what it has read before."""
    by_row = Interleave(kind=InterleaveKind.BANDS, rows=1)
    deals = (Assignment.STATIC, Assignment.TICKET)
    plain = [_ordered(case, interleave=by_row, assignment=assignment) for assignment in deals]
    return [replace(one, ordering=replace(one.ordering, reserved_sms=gpu.num_sms - NUM_FEW)) for one in plain]


def _ordered(case: str, **changes: Any) -> Schedule:
    tiling = CASES[case][1]
    chosen = schedule(tuple((tile.m, tile.n, tile.k) for tile in tiling.tiles), **changes)
    return replace(chosen, tiling=tiling)
