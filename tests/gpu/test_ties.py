"""A GPU runs only kernels and plans that were proven and built together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cupy
import pytest

from tests.support.forged import with_others
from tests.support.on_card import check_artifact, fused, problem, schedule
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.outcome import Measured, Rejected
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare
from tuner.workers.gpu.launching.launch import Kernel, PlanOnDevice
from tuner.workers.gpu.library.runners import launchable_of
from tuner.workers.gpu.session import Session
from tuner.workers.protocol.messages import Work
from tuner.workers.source.launchable import LaunchRefused

PAIR = ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256)
WIDER = ffn_pair(m=64, d_in=256, d_hidden=768, d_out=256)


def work(builder: Builder, gpu: Gpu, *, tile_n: int = 64, workload: object = PAIR) -> Work:
    return prepare(workload, gpu, fused(schedule(((16, tile_n, 64),) * 2)), builder, {}).work  # type: ignore[arg-type]


def test_a_cubin_that_was_not_built_for_the_plan_is_not_loaded(session: Session, builder: Builder, gpu: Gpu) -> None:
    good, other = launchable_of(work(builder, gpu)), launchable_of(work(builder, gpu, tile_n=32))
    mixed = replace(good, cubin=other.cubin)
    with pytest.raises(LaunchRefused, match="the cubin is not the one that was built"):
        Kernel(mixed)
    outcome = session.evaluate(problem(PAIR), replace(work(builder, gpu), launchables=(mixed,))).outcome
    assert isinstance(outcome, Rejected)
    assert "the cubin is not the one that was built" in outcome.reason
    assert isinstance(session.evaluate(problem(PAIR), work(builder, gpu)).outcome, Measured)


def test_a_kernel_launches_no_plan_of_another_build_and_over_no_other_buffers(
    session: Session, builder: Builder, gpu: Gpu
) -> None:
    cupy.cuda.Device().synchronize()
    good, other = launchable_of(work(builder, gpu)), launchable_of(work(builder, gpu, tile_n=32))
    kernel, plan = Kernel(good), PlanOnDevice(other)
    ops = session._prepare(problem(PAIR)).data.slot_ops(0)
    with pytest.raises(LaunchRefused, match="the plan is tied to build"):
        kernel.launch(plan, ops, 0)
    with pytest.raises(LaunchRefused, match="the plan is tied to build"):
        kernel.launch_start_gate(plan, 0)
    wider = session._prepare(problem(WIDER)).data.slot_ops(0)
    with pytest.raises(LaunchRefused, match="shapes must agree"):
        kernel.launch(PlanOnDevice(good), wider, 0)


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.TWO_LAUNCHES])
def test_a_candidate_of_another_problem_is_refused(
    session: Session, builder: Builder, gpu: Gpu, kind: PlanKind
) -> None:
    chosen = Candidate(plan_kind=kind, schedule=schedule(((16, 64, 64),) * 2))
    foreign = prepare(WIDER, gpu, chosen, builder, {}).work
    outcome = session.evaluate(problem(PAIR), foreign).outcome
    assert isinstance(outcome, Rejected)
    assert f"the candidate is of workload {WIDER.digest}, the problem is {PAIR.digest}" in outcome.reason
    answer = session.finals(problem(PAIR), (foreign, work(builder, gpu)), 4)
    assert [bool(reason) for reason in answer.reasons] == [True, False]
    assert "the candidate is of workload" in session.trace(problem(PAIR), foreign).reason


def test_words_that_were_changed_after_the_proof_are_refused(session: Session, builder: Builder, gpu: Gpu) -> None:
    good = work(builder, gpu)
    (plan,) = good.plans
    bad = with_others(good, plans=good.plans)
    object.__setattr__(bad.plans[0], "plan", plan.plan.without_waits())
    outcome = session.evaluate(problem(PAIR), bad).outcome
    assert isinstance(outcome, Rejected)
    assert "plan 0 was modified after it was proven" in outcome.reason


def test_an_artifact_of_which_a_file_was_changed_does_not_run(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    check_artifact(builder, gpu, problem(PAIR), fused(schedule(((16, 64, 64),) * 2)), tmp_path)
    for name in ("plan0.bin", "kernel.cubin"):
        check_artifact(builder, gpu, problem(PAIR), fused(schedule(((16, 64, 64),) * 2)), tmp_path, changed=name)
