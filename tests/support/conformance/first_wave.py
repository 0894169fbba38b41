"""Tickets after a statically assigned first wave: every engine, cluster and launch mode."""

from __future__ import annotations

from tests.support.conformance.case import Claim, cross, named
from tests.support.conformance.schedules import BY_SLICE, dots, in_turns, portable, swapped, waved, wide
from tests.support.conformance.workloads import RAGGED, chain_of_three
from tuner.core.problem.workload import Activation
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.gemm.pairs import ffn_pair

#: Many tasks for each of a few CTAs.
FEW_ROWS = ffn_pair(m=3, d_in=1024, d_hidden=4096, d_out=1032, activation=Activation.SILU, gated=True)
TWO = ((64, 64, 64), (64, 32, 64))
SHAPES = {
    "wgmma": waved(wide(TWO)),
    "no run-ahead": waved(wide(TWO, run_ahead=0)),
    "split, by slice": waved(wide(TWO, split_k=(2, 3), **BY_SLICE)),
    "swapped": waved(swapped(((40, 64, 64), (40, 32, 64)))),
    "in turns": waved(in_turns(TWO)),
    "cluster 2x1": waved(wide(((128, 64, 64), (128, 32, 64)), cluster=(2, 1))),
    "cluster 1x2, split": waved(wide(((64, 96, 64), (64, 48, 64)), split_k=(2, 3), cluster=(1, 2))),
    "two share k": waved(wide(TWO, cluster=(1, 1, 2))),
    "mma": waved(portable(TWO)),
}

KINDS = (PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL)
LAUNCHED = named(SHAPES, "wgmma", "two share k", "mma")

CASES = [
    *cross("first-wave", "shapes", SHAPES, {"ragged": RAGGED}),
    *cross("first-wave", "shapes", {"simt": waved(dots((2, 32, 256)))}, {"3 rows": FEW_ROWS}),
    *cross("first-wave", "again", SHAPES, {"ragged": RAGGED}, claim=Claim.RELAUNCHES),
    *cross("first-wave", "kinds", LAUNCHED, {"ragged": RAGGED}, kinds=KINDS),
    *cross("first-wave", "again", LAUNCHED, {"ragged": RAGGED}, kinds=KINDS, claim=Claim.RELAUNCHES),
    *cross(
        "first-wave",
        "workloads",
        {"64 rows": waved(wide(((64, 64, 64), (64, 128, 64), (64, 32, 128))), reserved_sms=100)},
        {"three ops": chain_of_three(300, (128, 1032, 2048, 512))},
    ),
    *cross(
        "first-wave",
        "last wait",
        named(SHAPES, "wgmma", "cluster 2x1", "mma"),
        {"ragged": RAGGED},
        claim=Claim.ABORT,
        wait=-1,
    ),
]
