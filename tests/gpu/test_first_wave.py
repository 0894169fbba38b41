"""Tickets behind a first wave that is dealt, on a card: every engine, cluster and way of launching, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gpu.test_ping_pong import schedule as in_turns
from tests.gpu.test_simt import schedule as dots
from tests.gpu.test_simt import simt
from tests.gpu.test_swap_ab import schedule as swapped
from tests.gpu.test_wgmma import hopper
from tests.gpu.test_wgmma import schedule as cooperative
from tests.support.forged import forged, with_others
from tests.support.on_card import check_relaunches, fused, problem, run
from tests.support.on_card import schedule as portable
from tuner.core.plan.words import FIRST_WAVE
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, GemmOp, Workload, WorkloadKind, ffn_pair
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate, PlanKind
from tuner.core.schedule.ordering import Assignment, Granularity, Schedule, WaitPosition
from tuner.core.schedule.tiling import Engine
from tuner.core.trial.outcome import Failed, FailureKind
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

__all__ = ["hopper"]

#: Ragged edges, and many tasks for each of few CTAs.
PAIR = ffn_pair(m=200, d_in=520, d_hidden=1000, d_out=264, activation=Activation.RELU)
FEW_ROWS = ffn_pair(m=3, d_in=1024, d_hidden=4096, d_out=1032, activation=Activation.SILU, gated=True)


def waved(chosen: Schedule, reserved_sms: int = 120) -> Schedule:
    """On few SMs, so that most tasks are drawn."""
    ordering = replace(chosen.ordering, assignment=Assignment.FIRST_WAVE, reserved_sms=reserved_sms)
    return replace(chosen, ordering=ordering)


TWO = ((64, 64, 64), (64, 32, 64))
CASES = {
    "wgmma": waved(cooperative(TWO)),
    "no run-ahead": waved(cooperative(TWO, run_ahead=0)),
    "split, by slice": waved(
        cooperative(TWO, split_k=(2, 3), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE)
    ),
    "swapped": waved(swapped(((40, 64, 64), (40, 32, 64)))),
    "in turns": waved(in_turns(TWO)),
    "cluster 2x1": waved(cooperative(((128, 64, 64), (128, 32, 64)), cluster=(2, 1))),
    "cluster 1x2, split": waved(cooperative(((64, 96, 64), (64, 48, 64)), split_k=(2, 3), cluster=(1, 2))),
    "two share k": waved(cooperative(TWO, cluster=(1, 1, 2))),
    "mma": waved(portable(TWO)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_engine_is_right(session: Session, builder: Builder, gpu: Gpu, case: str) -> None:
    (plan,) = plans_for(PAIR, gpu, fused(CASES[case]))
    assert plan.plan.assignment == FIRST_WAVE
    assert plan.plan.num_tasks > 2 * plan.plan.num_ctas
    run(session, builder, gpu, problem(PAIR), fused(CASES[case]))
    check_relaunches(session, builder, gpu, problem(PAIR), fused(CASES[case]))


def test_the_cuda_cores_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    chosen = waved(dots(simt((2, 32, 256))))
    assert chosen.tiling.engine is Engine.SIMT
    run(session, builder, gpu, problem(FEW_ROWS), fused(chosen))


@pytest.mark.parametrize("kind", [PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL])
@pytest.mark.parametrize("case", ["wgmma", "two share k", "mma"])
def test_every_way_of_launching_is_right(
    session: Session, builder: Builder, gpu: Gpu, kind: PlanKind, case: str
) -> None:
    candidate = Candidate(plan_kind=kind, schedule=CASES[case])
    run(session, builder, gpu, problem(PAIR), candidate)
    check_relaunches(session, builder, gpu, problem(PAIR), candidate)


def test_three_ops_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    ops = (
        GemmOp(name="first", m=300, n=1032, k=128, activation=Activation.SILU, gated=True),
        GemmOp(name="second", m=300, n=2048, k=1032, source="first"),
        GemmOp(name="third", m=300, n=512, k=2048, source="second", residual=True),
    )
    chosen = waved(cooperative(((64, 64, 64), (64, 128, 64), (64, 32, 128))), reserved_sms=100)
    run(session, builder, gpu, problem(Workload(kind=WorkloadKind.CHAIN, ops=ops)), fused(chosen))


@pytest.mark.parametrize("case", ["wgmma", "cluster 2x1", "mma"])
def test_an_aborted_launch_leaves_nan_and_the_next_one_is_right(
    session: Session, builder: Builder, gpu: Gpu, case: str
) -> None:
    good = prepare(PAIR, gpu, fused(CASES[case]), builder, {})
    (plan,) = good.plans
    words = plan.words.copy()
    words[int(words[8]) :].reshape(-1, 8)[-1, 2] += 1
    bad = with_others(good.work, plans=(forged(plan, words),), spin_limit_cycles=10**8)
    outcome = session.evaluate(problem(PAIR), bad).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.HANG
    run(session, builder, gpu, problem(PAIR), fused(CASES[case]))
