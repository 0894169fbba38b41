"""Intermediates that are read in band, and weights that are loaded ahead of waits with few stages in flight."""

from __future__ import annotations

from dataclasses import replace

from tests.support.chains import block, run_of_block, side_by_side
from tests.support.conformance.case import Case, Claim, cross, named
from tests.support.conformance.chains import in_runs, kinds_of
from tests.support.conformance.schedules import TICKET, swapped, waved, wide
from tests.support.on_card import fused
from tuner.core.problem.workload import Activation, Dtype
from tuner.core.schedule.ordering import Granularity
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.ops.gemm.pairs import ffn_pair

LOW = ((16, 64, 64), (16, 56, 64), (16, 32, 128), (16, 48, 64))
#: Rings with fewer and with more stages of inputs than readers; one ring for both operands, and two.
SHAPES = {
    "queues": wide(LOW),
    "queues, joint rings": wide(LOW, stages=6, input_stages=6),
    "queues, two stages": wide(LOW, stages=2, input_stages=2, reserved_sms=120),
    "few CTAs": wide(LOW, reserved_sms=120),
    "tickets": wide(LOW, assignment=TICKET, reserved_sms=120),
    "a first wave": waved(wide(LOW)),
    "parts": wide(LOW, split_k=(2, 1, 2, 3)),
    "parts, tickets": wide(LOW, split_k=(2, 2, 2, 2), assignment=TICKET, granularity=Granularity.TILE),
    "deep stages": wide(((16, 64, 128), (16, 56, 128), (16, 32, 256), (16, 48, 256)), stages=3, input_stages=5),
    "shared k": wide(LOW, cluster=(1, 1, 2)),
    "shared k, tickets": wide(LOW, cluster=(1, 1, 2), assignment=TICKET, reserved_sms=120),
    "swapped": swapped(((8, 48, 64), (8, 32, 64), (8, 48, 128), (8, 32, 64)), input_stages=5),
    "swapped, parts": swapped(((8, 64, 64), (8, 32, 64)) * 2, split_k=(2, 1, 2, 1), input_stages=5),
    "swapped, shared k": swapped(((16, 64, 64), (16, 32, 64)) * 2, cluster=(1, 1, 2)),
    "window": wide(LOW, window=2),
}


def banded(shapes: dict[str, Schedule], *, ahead_window: int = 0, in_band: bool = True) -> dict[str, Schedule]:
    """The same schedules, reading in band or by signals."""
    return {
        name: one.but(tiling=replace(one.tiling, in_band=in_band, ahead_window=ahead_window))
        for name, one in shapes.items()
    }


ONE, SEVERAL = block(1), block(5)
#: Few columns are left for the last tile and the last stage; all row counts that can be read in band.
RAGGED = block(8, heads=136, width=320, hidden=200, qkv=104, dtype=Dtype.BF16)
PAIR = ffn_pair(m=3, d_in=512, d_hidden=1032, d_out=520)
GATED = ffn_pair(m=8, d_in=512, d_hidden=1032, d_out=520, activation=Activation.SILU, gated=True, bias=True)
KINDS = kinds_of(SEVERAL)
OF_PAIRS = {name: replace(one, ops=one.ops[:2]) for name, one in SHAPES.items()}
PAIR_KINDS = (PlanKind.FUSED, PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL)


def same_bits() -> list[Case]:
    """Reading in band gives the same bits as reading by signals, in every launch."""
    cases = cross(
        "in_band",
        "bits",
        banded(named(SHAPES, "queues", "parts", "swapped", "shared k"), in_band=False),
        {"several rows": SEVERAL},
        claim=Claim.SAME_BITS,
        num_launches=5,
    )
    read = banded(named(SHAPES, "queues", "parts", "swapped", "shared k"))
    return [replace(case, others=(fused(one),)) for case, one in zip(cases, read.values(), strict=True)]


CASES = [
    *cross("in_band", "block", banded(SHAPES), {"one row": ONE, "ragged": RAGGED}, kinds=(PlanKind.FUSED_PDL,)),
    *cross("in_band", "block", banded(SHAPES), {"several": SEVERAL}, kinds=KINDS),
    *cross(
        "in_band",
        "again",
        banded(SHAPES),
        {"several": SEVERAL},
        kinds=(PlanKind.FUSED, PlanKind.FUSED_PDL),
        claim=Claim.RELAUNCHES,
        num_launches=30,
    ),
    *cross("in_band", "pair", banded(OF_PAIRS), {"plain": PAIR, "gated": GATED}, kinds=PAIR_KINDS),
    *cross(
        "in_band",
        "runs",
        in_runs(banded(named(SHAPES, "queues", "parts")), (2,), (1, 3)),
        {"several": SEVERAL},
        kinds=(PlanKind.RUNS,),
    ),
    *cross(
        "in_band",
        "norm of an input",
        banded(named(OF_PAIRS, "queues", "swapped")),
        {"run": run_of_block(8)},
        kinds=PAIR_KINDS,
    ),
    *cross("in_band", "fan-out", banded(named(SHAPES, "queues")), {"q, k, v": side_by_side(8)}, kinds=KINDS),
    *cross(
        "in_band",
        "zip",
        banded(named(SHAPES, "parts", "swapped, shared k")),
        {"several": SEVERAL},
        kinds=(PlanKind.FUSED_PDL,),
        claim=Claim.ARTIFACT,
    ),
    *cross(
        "in_band",
        "first wait",
        banded(named(OF_PAIRS, "queues", "parts", "shared k")),
        {"plain": PAIR},
        claim=Claim.ABORT,
    ),
    *same_bits(),
    *cross(
        "ahead_window",
        "block",
        banded(named(SHAPES, "queues", "tickets", "parts", "shared k", "swapped"), ahead_window=1, in_band=False)
        | banded(named(SHAPES, "queues, joint rings"), ahead_window=3, in_band=False),
        {"several": SEVERAL, "ragged": RAGGED},
        kinds=(PlanKind.FUSED, PlanKind.FUSED_PDL),
    ),
    *cross(
        "ahead_window",
        "in_band",
        banded(named(SHAPES, "queues", "swapped, parts", "a first wave"), ahead_window=1),
        {"several": SEVERAL},
        kinds=(PlanKind.FUSED_PDL,),
    ),
    *cross(
        "ahead_window",
        "held back",
        banded({"queues": wide(LOW, run_ahead=50)}, ahead_window=1, in_band=False),
        {"several": SEVERAL},
    ),
]
