"""Whatever a candidate does on a GPU, only its own trial fails, with a reason, and the next trial is unaffected."""

from __future__ import annotations

import fcntl
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import cupy
import pynvml
import pytest

from tests.support.on_card import fused, problem, schedule
from tests.support.planted import (
    HANG,
    KERNEL_FAULTS,
    PROCESS_FAULTS,
    KernelFault,
    ProcessFault,
    with_deed,
    with_fault,
)
from tests.support.rogues import ENDLESS
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import evaluate
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Outcome, Stage
from tuner.errors import Quarantined
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, prepare
from tuner.workers.host.cards import Card
from tuner.workers.host.supervisor import GpuSupervisor

pytest.importorskip("cupy")

from tuner.workers.gpu.child import lock_path

WORKLOAD = ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256)
PROBLEM = problem(WORKLOAD)
GOOD = fused(schedule(((16, 64, 64), (16, 64, 64))))
#: Longer than any good trial takes here.
EVALUATE_S = 3.0
BUILD_S = 6.0


@pytest.fixture(scope="module")
def supervisor(card: Card, build_cache: Path) -> Iterator[GpuSupervisor]:
    supervisor = GpuSupervisor(card, build_cache, Limits(evaluate_deadline_s=EVALUATE_S, build_deadline_s=BUILD_S))
    yield supervisor
    supervisor.close()


@pytest.fixture(scope="module")
def gpu(supervisor: GpuSupervisor) -> Gpu:
    return supervisor.target.gpu


@pytest.fixture(scope="module")
def good(supervisor: GpuSupervisor, gpu: Gpu, builder: Builder) -> PreparedKernel:
    return prepare(WORKLOAD, gpu, GOOD, builder, {})


@pytest.fixture(scope="module")
def usual(supervisor: GpuSupervisor, good: PreparedKernel) -> Measured:
    """The reference: of three measurements of the good candidate, the one with the median speed-up."""
    return sorted((measured(supervisor.measure(PROBLEM, good)) for _ in range(3)), key=lambda m: m.speedup)[1]


def measured(outcome: Outcome) -> Measured:
    assert isinstance(outcome, Measured), outcome
    return outcome


def expect_failure(outcome: Outcome, kind: FailureKind, reason: str) -> None:
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is kind, outcome
    assert re.search(reason, outcome.reason), outcome


def expect_as_usual(outcome: Outcome, usual: Measured) -> None:
    """Expects correct and identical results, and a time near the reference."""
    again = measured(outcome)
    assert again.rel_error == pytest.approx(usual.rel_error)
    assert again.speedup == pytest.approx(usual.speedup, rel=0.15)


def used_bytes(card: Card) -> int:
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(card.uuid)).used)


@pytest.mark.parametrize("fault", KERNEL_FAULTS, ids=lambda fault: fault.name)
def test_a_kernels_fault_is_named_and_the_next_trial_is_as_usual(
    supervisor: GpuSupervisor, builder: Builder, gpu: Gpu, good: PreparedKernel, usual: Measured, fault: KernelFault
) -> None:
    outcome = supervisor.measure(PROBLEM, with_fault(fault, good, builder, gpu.arch))
    expect_failure(outcome, fault.kind, fault.reason)
    expect_as_usual(supervisor.measure(PROBLEM, good), usual)


@pytest.mark.parametrize("fault", PROCESS_FAULTS, ids=lambda fault: fault.name)
def test_a_childs_end_is_named_and_the_next_trial_is_as_usual(
    supervisor: GpuSupervisor, good: PreparedKernel, usual: Measured, fault: ProcessFault
) -> None:
    expect_failure(supervisor.measure(PROBLEM, with_deed(fault, good)), FailureKind.CRASH, fault.reason)
    expect_as_usual(supervisor.measure(PROBLEM, good), usual)


def test_hangs_cost_their_deadline_and_little_more_and_the_memory_comes_back(
    card: Card, supervisor: GpuSupervisor, builder: Builder, gpu: Gpu, good: PreparedKernel, usual: Measured
) -> None:
    bad = with_fault(HANG, good, builder, gpu.arch)
    before_bytes = used_bytes(card)
    lost_s, delays = [], []
    for _ in range(3):
        begin = time.monotonic()
        expect_failure(supervisor.measure(PROBLEM, bad), HANG.kind, HANG.reason)
        beyond_s = time.monotonic() - begin - EVALUATE_S
        after = measured(supervisor.measure(PROBLEM, good))
        expect_as_usual(after, usual)
        lost_s.append(beyond_s + after.stage_s["start"])
        delays.append({"kill": round(beyond_s, 3), "start": round(after.stage_s["start"], 3)})
    assert max(lost_s) < 4, delays
    assert statistics.median(lost_s) < 2.5, delays
    assert abs(used_bytes(card) - before_bytes) < 256 * 2**20


def test_a_compile_that_takes_for_ever_is_killed_at_its_deadline(
    supervisor: GpuSupervisor, good: PreparedKernel, usual: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tuner.workers.builder.kernels.render", lambda *_, **__: ENDLESS)
        outcome = evaluate(supervisor, PROBLEM, GOOD)
    expect_failure(outcome, FailureKind.COMPILE_TIMEOUT, f"killed after {BUILD_S:g} s")
    assert outcome.stage is Stage.BUILD  # type: ignore[union-attr]
    expect_as_usual(supervisor.measure(PROBLEM, good), usual)


def test_a_neighbour_is_noticed_and_a_problem_that_does_not_fit_beside_it_is_a_trial(
    supervisor: GpuSupervisor, good: PreparedKernel, usual: Measured
) -> None:
    measured(supervisor.measure(PROBLEM, good))
    free_bytes, _ = cupy.cuda.runtime.memGetInfo()
    ballast = cupy.cuda.Memory(free_bytes - 2**31)
    try:
        values = {metric.tag: metric.value for metric in measured(supervisor.measure(PROBLEM, good)).metrics}
        assert values["foreign_processes"] >= 1
        large = problem(ffn_pair(m=16, d_in=20_000, d_hidden=20_000, d_out=20_000))
        outcome = evaluate(supervisor, large, Candidate(plan_kind=PlanKind.LIBRARY))
        expect_failure(outcome, FailureKind.OUT_OF_MEMORY, "of the card are free")
    finally:
        del ballast
    expect_as_usual(supervisor.measure(PROBLEM, good), usual)


def test_a_card_that_another_tuner_keeps_is_quarantined_until_it_lets_go(
    card: Card, supervisor: GpuSupervisor, good: PreparedKernel, usual: Measured
) -> None:
    measured(supervisor.measure(PROBLEM, good))
    with lock_path(card.uuid).open("a+") as theirs:
        supervisor._processes.drop()
        fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(Quarantined, match="in use by another tuner"):
            supervisor.measure(PROBLEM, good)
    supervisor.probe()
    expect_as_usual(supervisor.measure(PROBLEM, good), usual)
