"""Scattered sums: each part of a tile reduces and stores a share of it; the bits equal those of a reduction by the last
part."""

from __future__ import annotations

from dataclasses import replace

from tests.support.conformance.case import OURS, Case, Claim, cross
from tests.support.conformance.schedules import swapped, wide
from tuner.core.problem.workload import Activation
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Granularity, SplitTiles, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import PartSums
from tuner.ops.gemm.pairs import ffn_pair

PAIRS = {
    "192 rows": ffn_pair(m=192, d_in=512, d_hidden=1056, d_out=832, activation=Activation.SILU, gated=True),
    "ragged": ffn_pair(m=137, d_in=520, d_hidden=1032, d_out=776, activation=Activation.RELU, bias=True, residual=True),
}


def scattered(schedule: Schedule, part_sums: PartSums = PartSums.SCATTERED) -> Schedule:
    """A reduction by all parts in shares, or by the last part alone."""
    return schedule.but(tiling=replace(schedule.tiling, part_sums=part_sums))


SHAPES = {
    "12 warps": scattered(wide(((192, 48, 64), (192, 64, 64)), split_k=(3, 2))),
    "four parts, slices": scattered(
        wide(
            ((64, 48, 64), (64, 64, 64)),
            split_k=(2, 4),
            granularity=Granularity.TILE,
            wait_position=WaitPosition.SLICE,
        )
    ),
    "swapped": scattered(swapped(((72, 32, 64), (72, 64, 64)), split_k=(4, 3), reserved_sms=0)),
    "tail": scattered(swapped(((72, 128, 64), (72, 128, 64)), warps=8, split_k=(2, 4), split_tiles=SplitTiles.TAIL)),
}
KINDS = tuple(kind for kind in OURS if not kind.is_side_by_side)
_FEW = SHAPES["four parts, slices"]
CASES: list[Case] = [
    *cross("scattered", "every", SHAPES, PAIRS, kinds=KINDS),
    *cross("scattered", "few", {"slices": _FEW}, PAIRS, kinds=KINDS, num_sms=20),
    *cross("scattered", "again", {"slices": _FEW}, PAIRS, kinds=(PlanKind.FUSED_PDL,), claim=Claim.RELAUNCHES),
    *cross("scattered", "zip", {"slices": _FEW}, PAIRS, kinds=(PlanKind.FUSED_PDL,), claim=Claim.ARTIFACT),
    *(
        Case(
            id=f"scattered-bits-{name}-fused",
            workload=PAIRS["192 rows"],
            candidate=Candidate(plan_kind=PlanKind.FUSED, schedule=shape),
            claim=Claim.SAME_BITS,
            others=(Candidate(plan_kind=PlanKind.FUSED, schedule=scattered(shape, PartSums.LAST)),),
        )
        for name, shape in SHAPES.items()
    ),
]
