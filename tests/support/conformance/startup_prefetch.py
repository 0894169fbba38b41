"""Weights prefetched into the L2 at the start: this affects timing only, never a result."""

from __future__ import annotations

from dataclasses import replace

from tests.support.conformance.case import OTHERS, Case, Claim, cross, named
from tests.support.conformance.schedules import STARTUP_PREFETCHES, in_turns, prefetching, swapped, wide
from tests.support.conformance.workloads import BOTH, EVERY_OPTION, RAGGED, WHOLE, apart, chain_of_three
from tests.support.on_card import fused
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity, SplitOrder, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Epilogue
from tuner.ops.gemm.pairs import ffn_pair

#: Rings so short that prefetching 8 stages past the ring reaches the end of the first task for some CTAs, but not for
#: others.
SHAPES = {
    "16 rows": wide(((16, 64, 64), (16, 32, 64)), stages=3),
    "16 rows, deep stages": wide(((16, 48, 128), (16, 16, 128)), stages=2),
    "16 rows, several tasks": wide(((16, 64, 64), (16, 32, 64)), stages=3, reserved_sms=120),
    "64 rows, readers begin, too": wide(((64, 112, 64), (64, 64, 64)), stages=3),
    "64 rows, some held back": wide(((64, 112, 64), (64, 64, 64)), stages=4, run_ahead=25),
    "64 rows, window": wide(((64, 112, 64), (64, 48, 64)), stages=4, window=2),
    "64 rows, shares": wide(((64, 64, 64), (64, 64, 64)), stages=3, assignment=Assignment.SHARES, reserved_sms=100),
    "64 rows, a first wave": wide(
        ((64, 64, 64), (64, 64, 64)), stages=3, assignment=Assignment.FIRST_WAVE, reserved_sms=100
    ),
    "128 rows": wide(((128, 224, 64), (128, 256, 64)), stages=3),
    "256 rows": wide(((256, 128, 64), (256, 112, 64)), stages=2, input_stages=2),
    "split": wide(((64, 112, 64), (64, 64, 64)), stages=2, split_k=(2, 2)),
    "strided parts": wide(
        ((16, 80, 64), (16, 64, 64)), stages=2, split_k=(1, 2), split_order=SplitOrder.STRIDED, reserved_sms=100
    ),
    "waits by slice": wide(
        ((64, 64, 64), (64, 64, 64)), stages=3, granularity=Granularity.TILE, wait_position=WaitPosition.SLICE
    ),
    "ping-pong": in_turns(((64, 128, 64), (64, 96, 64)), stages=3),
    "swapped": swapped(((40, 128, 64), (40, 64, 64)), stages=3),
    "swapped, 200 rows": swapped(((200, 64, 64), (200, 48, 64)), stages=3),
    "cluster 1x2": wide(((64, 192, 64), (64, 96, 64)), stages=3, cluster=(1, 2)),
    "cluster 2x1": wide(((128, 64, 64), (128, 48, 64)), stages=3, cluster=(2, 1)),
    "cluster 2x1, a first wave": wide(
        ((128, 64, 64), (128, 64, 64)), stages=3, cluster=(2, 1), assignment=Assignment.FIRST_WAVE, reserved_sms=100
    ),
    "cluster 2x1, slices of lines": wide(((128, 64, 128), (128, 48, 128)), stages=2, cluster=(2, 1)),
    "cluster 4x1, split": wide(((64, 64, 64), (64, 32, 64)), stages=2, split_k=(1, 2), cluster=(4, 1)),
    "cluster 2x2, swapped": swapped(((128, 256, 64), (128, 224, 64)), warps=8, stages=3, cluster=(2, 2)),
    "shared k": wide(((64, 128, 64), (64, 64, 64)), stages=2, cluster=(1, 1, 2), reserved_sms=120),
    "shared k and weights": wide(((128, 64, 64), (128, 64, 64)), stages=2, cluster=(2, 1, 2), reserved_sms=120),
}
#: For a gated op, both halves of the weights are prefetched.
OPTIONED = {
    "16 rows": wide(((16, 64, 64), (16, 64, 64)), stages=3),
    "64 rows": wide(((64, 56, 128), (64, 64, 64)), stages=3),
    "cluster 2x1": wide(((128, 32, 64), (128, 64, 64)), stages=3, cluster=(2, 1)),
    "shared k": wide(((64, 64, 64), (64, 96, 64)), stages=2, cluster=(1, 1, 2)),
    "swapped": swapped(((96, 32, 64), (96, 64, 64)), stages=3),
    "cluster 2x1, swapped": swapped(((192, 32, 64), (192, 64, 64)), stages=3, cluster=(2, 1)),
}
PAIRS = {
    f"every option, d_in={d_in}": ffn_pair(
        m=150,
        d_in=d_in,
        d_hidden=1032,
        d_out=520,
        activation=Activation.SILU,
        dtype=Dtype.BF16,
        **EVERY_OPTION,
    )
    for d_in in (512, 1024)
}
STORED_BY_COPIES = wide(((128, 128, 64), (128, 64, 64)), stages=2)


def prefetched(shapes: dict[str, Schedule]) -> dict[str, Schedule]:
    """The largest legal number of stages."""
    return {name: prefetching(shape) for name, shape in shapes.items()}


def same_bits(group: str, shapes: dict[str, Schedule], workloads: dict[str, Workload]) -> list[Case]:
    """Every number of stages gives the bits of the smallest number, in the first launch and in the second."""
    return [
        replace(case, others=tuple(fused(prefetching(shape, stages)) for stages in STARTUP_PREFETCHES[1:]))
        for name, shape in shapes.items()
        for case in cross(
            "prefetch",
            group,
            {name: prefetching(shape, STARTUP_PREFETCHES[0])},
            workloads,
            claim=Claim.SAME_BITS,
            num_launches=2,
        )
    ]


def same_bits_of_dependent_launches() -> list[Case]:
    kinds = (PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL)
    chosen = named(SHAPES, "16 rows", "cluster 2x1")
    cases = [
        (case, shape)
        for name, shape in chosen.items()
        for case in cross(
            "prefetch", "dependent", {name: shape}, {"whole": WHOLE}, kinds=kinds, claim=Claim.SAME_BITS, num_launches=3
        )
    ]
    return [
        replace(
            case,
            others=tuple(
                Candidate(plan_kind=case.candidate.plan_kind, schedule=one)
                for one in (prefetching(shape, 2), prefetching(shape))
            ),
        )
        for case, shape in cases
    ]


CASES = [
    *cross("prefetch", "shapes", prefetched(SHAPES), BOTH),
    *same_bits("shapes", SHAPES, BOTH),
    *cross("prefetch", "options", prefetched(OPTIONED), PAIRS),
    *same_bits("options", OPTIONED, PAIRS),
    *cross(
        "prefetch",
        "hints",
        {
            str(hint): prefetching(SHAPES["16 rows"], 4, weight_hint=hint)
            for hint in (CacheHint.NORMAL, CacheHint.EVICT_LAST)
        },
        {"ragged": RAGGED},
    ),
    *cross(
        "prefetch",
        "stored by copies",
        {"128 rows": prefetching(STORED_BY_COPIES, epilogue=Epilogue.TMA)},
        {"ragged": RAGGED},
    ),
    *cross(
        "prefetch",
        "kinds",
        prefetched(
            named(
                SHAPES,
                *("16 rows", "16 rows, several tasks", "128 rows", "split", "swapped", "cluster 2x1", "shared k"),
                "64 rows, a first wave",
            )
        ),
        {"ragged": RAGGED},
        kinds=OTHERS,
    ),
    *same_bits_of_dependent_launches(),
    *cross(
        "prefetch",
        "workloads",
        {"64 rows": prefetching(wide(((64, 64, 64), (64, 128, 64), (64, 32, 64)), stages=2, reserved_sms=100))},
        {"three ops": chain_of_three(300, (1024, 264, 512, 72))},
    ),
    *cross(
        "prefetch",
        "workloads",
        {"64 rows": prefetching(wide(((64, 64, 64), (64, 64, 128)), stages=3))},
        apart((64, 512, 1024), (64, 128, 2048)),
    ),
    *cross(
        "prefetch",
        "first wait",
        prefetched(named(SHAPES, "16 rows", "64 rows, readers begin, too", "cluster 2x1")),
        {"ragged": RAGGED},
        claim=Claim.ABORT,
    ),
    *cross("prefetch", "zip", prefetched(named(SHAPES, "cluster 2x1")), {"ragged": RAGGED}, claim=Claim.ARTIFACT),
]
