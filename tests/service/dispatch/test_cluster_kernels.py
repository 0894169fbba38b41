"""A kernel is built on one machine and measured on another: with the real compiler, up to the launch on a GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.builders import schedule, workload
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import LIBRARY, fused
from tuner.core.trial.evaluator import Preparation, Prepared, Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Outcome, Rejected, Stage
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.calls import WorkerCalls
from tuner.dispatch.cluster.preparers import KernelPreparer
from tuner.errors import WorkerError
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.builder.shipping import ShippedKernel, adopt
from tuner.workers.simulated.evaluator import SimulatedEvaluator

H200 = parse_target("h200")
PROBLEM = Problem(workload=workload(), objective=Objective())
CANDIDATE = fused(schedule())


class UpToTheCard(SimulatedEvaluator):
    """Prepares kernels for an H200; instead of launching, it reports what it was given."""

    def __init__(self, folder: Path) -> None:
        super().__init__(H200)
        self.builder = Builder(folder)
        self.kernels = KernelPreparer(H200, self.builder, Limits.spin_limit_cycles)
        self.num_prepared = 0
        self.handed: list[Prepared] = []

    def prepare(self, problem: Problem, candidate: object) -> Preparation:
        self.num_prepared += 1
        return self.kernels.prepare(problem, candidate)  # type: ignore[arg-type]

    def measure(self, problem: Problem, prepared: Prepared, *_: float | None) -> Outcome:
        self.handed.append(prepared)
        return Failed(stage=Stage.LAUNCH, kind=FailureKind.INTERNAL, reason="there is no card")

    def close(self) -> None:
        self.builder.close()


@pytest.fixture
def card(tmp_path: Path) -> Iterator[tuple[UpToTheCard, WorkerCalls]]:
    """A worker with the GPU, and its evaluator."""
    evaluator = UpToTheCard(tmp_path / "measures")
    calls = WorkerCalls("card", [evaluator], tmp_path / "measures", Limits(), num_places=1)
    yield evaluator, calls
    calls.close()


def asked(calls: WorkerCalls, call: messages.Call) -> object:
    return messages.decode_answer(call.op, asyncio.run(calls.answer(messages.encode(call))))


def prepare_call(candidate: object) -> messages.PrepareCall:
    return messages.PrepareCall(target=H200, problem=PROBLEM, candidate=candidate)  # type: ignore[arg-type]


def measure_call(prepared: object) -> messages.MeasureCall:
    return messages.MeasureCall(card="SIM-card-0", problem=PROBLEM, prepared=prepared, incumbent_speedup=None)  # type: ignore[arg-type]


def test_a_kernel_is_built_where_there_is_no_card_and_proven_but_not_built_where_there_is(
    tmp_path: Path, card: tuple[UpToTheCard, WorkerCalls]
) -> None:
    cores = WorkerCalls("cores", [], tmp_path / "builds", Limits(), num_places=1)
    shipped = asked(cores, prepare_call(CANDIDATE))
    refused = asked(cores, prepare_call(fused(schedule(stages=1000))))
    cores.close()
    assert isinstance(shipped, ShippedKernel)
    (kernel,) = shipped.kernels
    assert (shipped.candidate, kernel.built.cached) == (CANDIDATE, False)
    assert isinstance(refused, Rejected)
    evaluator, calls = card
    outcome = asked(calls, measure_call(shipped))
    assert isinstance(outcome, Failed)
    assert outcome.reason == "there is no card"
    (handed,) = evaluator.handed
    assert isinstance(handed, PreparedKernel)
    assert handed.kernels == (replace(kernel, built=replace(kernel.built, cached=True)),), "it was built again"
    assert handed.work.shared is not None
    handed.work.shared.check()
    assert handed.stage_s == shipped.stage_s


def test_what_is_prepared_and_measured_on_one_machine_is_proven_once(card: tuple[UpToTheCard, WorkerCalls]) -> None:
    evaluator, calls = card
    shipped = asked(calls, prepare_call(LIBRARY))
    assert isinstance(shipped, ShippedKernel)
    asked(calls, measure_call(shipped))
    assert (evaluator.num_prepared, len(evaluator.handed)) == (1, 1)
    asked(calls, measure_call(shipped))
    assert (evaluator.num_prepared, len(evaluator.handed)) == (2, 2)


def test_a_build_whose_key_is_a_path_is_refused(tmp_path: Path) -> None:
    cores = WorkerCalls("cores", [], tmp_path / "builds", Limits(), num_places=1)
    shipped = asked(cores, prepare_call(CANDIDATE))
    cores.close()
    assert isinstance(shipped, ShippedKernel)
    (kernel,) = shipped.kernels
    elsewhere = replace(shipped, kernels=(replace(kernel, built=replace(kernel.built, key="../../elsewhere")),))
    with pytest.raises(WorkerError, match="not a sha256"):
        adopt(elsewhere, tmp_path / "builds")
    assert not list(tmp_path.parent.glob("elsewhere*"))
