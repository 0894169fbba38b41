"""Neighbours: CTAs that are scheduled on one SM without depending on each other, including CTAs without a task."""

from __future__ import annotations

from dataclasses import replace

from tests.support.conformance.case import OURS, Case, Claim, cross
from tests.support.conformance.schedules import TICKET, wide
from tuner.core.problem.workload import Activation
from tuner.core.schedule.ordering import Assignment, Granularity, RasterKind, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.ops.gemm.pairs import ffn_pair

#: Two and three rows of tiles. The second op of the second pair has 39 tiles when launched alone, so one CTA has none.
PAIRS = {
    "96 rows": ffn_pair(m=96, d_in=512, d_hidden=1024, d_out=832, activation=Activation.RELU),
    "ragged": ffn_pair(m=137, d_in=520, d_hidden=1032, d_out=776, activation=Activation.SILU, gated=True, bias=True),
}
TILES = ((64, 48, 64), (64, 64, 64))


def beside(schedule: Schedule) -> Schedule:
    """The schedule with neighbours."""
    return schedule.but(tiling=replace(schedule.tiling, neighbours=2))


SHAPES = {
    "columns": beside(wide(TILES, raster=RasterKind.COLUMN)),
    "tickets": beside(wide(TILES, raster=RasterKind.COLUMN, assignment=TICKET)),
    "slices, parts": beside(
        wide(TILES, split_k=(1, 2), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE)
    ),
}
#: Workloads and grids in which CTAs have several tasks.
FEW = {
    "queues": SHAPES["columns"],
    "first wave": beside(wide(TILES, raster=RasterKind.COLUMN, assignment=Assignment.FIRST_WAVE)),
}
KINDS = tuple(kind for kind in OURS if not kind.is_side_by_side)
CASES: list[Case] = [
    *cross("neighbours", "every", SHAPES, PAIRS, kinds=KINDS),
    *cross("neighbours", "few", FEW, PAIRS, kinds=KINDS, num_sms=20),
    *cross(
        "neighbours",
        "again",
        {"columns": SHAPES["columns"]},
        PAIRS,
        kinds=(PlanKind.FUSED, PlanKind.FUSED_PDL),
        claim=Claim.RELAUNCHES,
    ),
    *cross(
        "neighbours", "zip", {"columns": SHAPES["columns"]}, PAIRS, kinds=(PlanKind.FUSED_PDL,), claim=Claim.ARTIFACT
    ),
]
