"""Convolutions on a GPU: every element is right, fused, in separate launches and by cuDNN; planted faults are
detected."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import ordering
from tests.support.conformance.launching import OnCard
from tests.support.conv_pairs import CASES as PAIRS
from tests.support.conv_pairs import workload as workload_of_pair
from tests.support.convs import BY_WARPGROUPS, CASES, SHORTCUT, bottleneck
from tests.support.forged import with_others, with_own
from tuner.core.problem.asked import workload_of
from tuner.core.problem.joined import joined_workload
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.candidate import LIBRARY, Candidate, fused, launched
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import any_space_of
from tuner.core.trial.outcome import Failed, FailureKind
from tuner.ops.conv.pair.numbers import planted
from tuner.ops.conv.pair.rules import refuse
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.search.joined import joined_guesses
from tuner.workers.source.render import render

pytest.importorskip("cupy")

ALL = CASES | {"a bottleneck": bottleneck(), "a bottleneck of four images": bottleneck(4)}
ALL |= {f"wgmma, {name}": case for name, case in BY_WARPGROUPS.items()}
ONE_OP: dict[str, Any] = {"op": "conv_pair", "name": "both", "images": 1, "height": 56, "width": 56, "channels": 64}
ONE_OP |= {"between": 64, "filters": 256, "first_kernel": 3, "first_padding": 1, "residual_source": "shortcut"}
#: Sizes for which cuDNN's plans are requested: whole channels, and three channels.
ASKED: dict[str, dict[str, Any]] = {
    "a bottleneck": {"kind": "network-convs", "network": "resnet50", "stage": 2, "images": 4},
    "three channels": {
        "kind": "conv-pair",
        "images": 1,
        "height": 56,
        "width": 56,
        "channels": 3,
        "first": {"filters": 64, "kernel": 7, "stride": 2},
        "second": {"filters": 64, "kernel": 3, "stride": 1},
    },
    "in one CTA": {"kind": "chain", "m": 56 * 56, "ops": [ONE_OP]},
    "silu": {
        "kind": "conv-pair",
        "images": 2,
        "height": 28,
        "width": 28,
        "channels": 64,
        "activation": "silu",
        "first": {"filters": 64, "kernel": 3, "stride": 1},
        "second": {"filters": 128, "kernel": 1, "stride": 1},
        "dtype": "bf16",
        "residual": True,
    },
}


def candidate_of(name: str, *, is_fused: bool) -> Candidate:
    workload, tiling = ALL[name]
    schedule = Schedule.of(tiling=tiling, ordering=ordering(len(workload.ops)))
    apart = PlanKind.N_LAUNCHES if len(workload.ops) > 2 else PlanKind.TWO_LAUNCHES
    return fused(schedule) if is_fused else Candidate(plan_kind=apart, schedule=schedule)


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "apart"])
@pytest.mark.parametrize("name", ALL)
def test_every_number_is_right(on_card: OnCard, name: str, is_fused: bool) -> None:
    assert on_card.measured(ALL[name][0], candidate_of(name, is_fused=is_fused)).time_us > 0


@pytest.mark.parametrize("name", ASKED)
def test_the_library_is_right(on_card: OnCard, name: str) -> None:
    workload = workload_of(ASKED[name])
    assert on_card.measured(workload, LIBRARY).time_us > 0


def skip_unless_legal(on_card: OnCard, workload: Workload, schedule: ConvPairSchedule) -> None:
    if reason := refuse(workload, on_card.gpu, workload.launch_ops[0], schedule):
        pytest.skip(reason)


@pytest.mark.parametrize("name", PAIRS)
def test_every_number_of_a_pair_in_one_cta_is_right(on_card: OnCard, name: str) -> None:
    op, schedule, dtype = PAIRS[name]
    skip_unless_legal(on_card, workload_of_pair(op, dtype), schedule)
    for kind in (PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL):
        candidate = Candidate(plan_kind=kind, schedule=Schedule(ops=(schedule,)))
        assert on_card.measured(workload_of_pair(op, dtype), candidate).time_us > 0


@pytest.mark.parametrize("name", PAIRS)
def test_every_number_of_two_convolutions_as_one_op_is_right(on_card: OnCard, name: str) -> None:
    op, schedule, dtype = PAIRS[name]
    two = Workload(kind=WorkloadKind.CHAIN, ops=(op.first, op.second), dtype=dtype)
    skip_unless_legal(on_card, joined_workload(two), schedule)
    joined = Candidate(plan_kind=PlanKind.JOINED, schedule=Schedule(ops=(schedule,)))
    assert on_card.measured(two, joined).time_us > 0


#: Blocks of networks in which a kernel computes two of the convolutions, the last with an added image.
BLOCKS: dict[str, dict[str, Any]] = {
    "a bottleneck": {"network": "resnet50", "run": "block"},
    "a stage's first bottleneck": {"network": "resnet50", "run": "first"},
    "a basic block": {"network": "resnet38", "run": "block"},
}


def block_of(on_card: OnCard, name: str) -> tuple[Workload, Candidate]:
    """A block of one image, and the first candidate that computes two of its convolutions as one op."""
    workload = workload_of({"kind": "network-convs", "stage": 1, "images": 1, **BLOCKS[name]})
    joined = next(joined_guesses(any_space_of(workload, on_card.gpu), 0), None)
    return (workload, joined) if joined else pytest.skip(f"no pair in one CTA is legal on {on_card.gpu.name}")


@pytest.mark.parametrize("name", BLOCKS)
def test_every_number_of_a_block_with_two_convolutions_as_one_op_is_right(on_card: OnCard, name: str) -> None:
    workload, joined = block_of(on_card, name)
    assert on_card.measured(workload, joined).time_us > 0


@pytest.mark.parametrize("fault", ["no bias", "no added image"])
def test_a_planted_fault_of_two_convolutions_as_one_op_is_found(on_card: OnCard, fault: str) -> None:
    workload, candidate = block_of(on_card, "a bottleneck")
    made, inside = launched(workload, candidate)
    assert inside.schedule is not None
    (pair,), (schedule,) = made.launch_ops, inside.schedule.launch_ops
    built = on_card.builder.build(planted(pair, schedule, workload.dtype)[fault], on_card.gpu.arch)
    outcome = on_card.evaluate(workload, with_own(on_card.ready(workload, candidate).work, built))
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.WRONG_NUMBERS


#: A pair with each fault: those of the added image, and the others, of which a 1x1 convolution does not have all.
FAULTS = dict.fromkeys(planted(*PAIRS["an added image"]), "an added image")
FAULTS |= dict.fromkeys(planted(*PAIRS["two images"]), "two images")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_a_pair_in_one_cta_is_found(on_card: OnCard, fault: str) -> None:
    op, schedule, dtype = PAIRS[FAULTS[fault]]
    candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=Schedule(ops=(schedule,)))
    workload = workload_of_pair(op, dtype)
    skip_unless_legal(on_card, workload, schedule)
    built = on_card.builder.build(planted(op, schedule, dtype)[fault], on_card.gpu.arch)
    outcome = on_card.evaluate(workload, with_own(on_card.ready(workload, candidate).work, built))
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.WRONG_NUMBERS


def test_a_planted_fault_is_found(on_card: OnCard) -> None:
    workload, tiling = SHORTCUT
    candidate = candidate_of("a stride, a shortcut", is_fused=True)
    work, source = on_card.ready(workload, candidate).work, render(workload, tiling)
    right = "(y) < kHeight"
    assert right in source
    planted = on_card.builder.build(
        source.replace(right, f"{right} + (row.pixel < kHeight * kWidth)"), on_card.gpu.arch
    )
    outcome = on_card.evaluate(workload, with_others(work, cubin=planted.cubin))
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.WRONG_NUMBERS
