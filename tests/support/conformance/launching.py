"""A case on a GPU: prepared, measured, or launched alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.conformance.case import Case
from tests.support.forged import with_others
from tests.support.on_card import problem
from tuner.core.legal.legality import kind_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Outcome
from tuner.ops.attention.rules import attention_engine_problem
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, prepare
from tuner.workers.protocol.messages import Work
from tuner.workers.source.render import render

if TYPE_CHECKING:
    from tuner.workers.gpu.launching.launch import Kernel
    from tuner.workers.gpu.session import Session

#: The bits that one launch produces, by op; on the card.
Bits = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class OnCard:
    """The GPU resources that a case's test needs."""

    session: Session
    builder: Builder
    gpu: Gpu

    def candidate(self, case: Case) -> Candidate:
        """The case's candidate on this GPU; the test is skipped if the GPU lacks the engine or plan kind."""
        candidate = case.on(self.gpu)
        schedule = candidate.schedule
        if schedule is not None and schedule.tiling.engine is Engine.WGMMA and self.gpu.compute_capability != (9, 0):
            pytest.skip(f"{self.gpu.name} has no wgmma")
        for attention in schedule.launch_ops if schedule else ():
            if reason := attention_engine_problem(attention.engine, self.gpu):
                pytest.skip(reason)
        if reason := kind_problem(case.workload, self.gpu, candidate.plan_kind):
            pytest.skip(reason)
        return candidate

    def ready(self, workload: Workload, candidate: Candidate) -> PreparedKernel:
        """The proven and built candidate; it must not be refused."""
        prepared = prepare(workload, self.gpu, candidate, self.builder, {})
        assert not prepared.refusal
        return prepared

    def evaluate(self, workload: Workload, work: Work) -> Outcome:
        """Checks the results and guards of the candidate, then times it."""
        return self.session.evaluate(problem(workload), work).outcome

    def measured(self, workload: Workload, candidate: Candidate) -> Measured:
        """Evaluates a candidate that must succeed."""
        outcome = self.evaluate(workload, self.ready(workload, candidate).work)
        assert isinstance(outcome, Measured), outcome
        return outcome

    def assert_finds(self, before: str, after: str, workload: Workload, schedule: Schedule) -> None:
        """Checks that the fused kernel with this change of its source is reported to compute wrong numbers."""
        work = self.ready(workload, fused(schedule)).work
        source = render(workload, schedule.tiling)
        assert before in source
        planted = self.builder.build(source.replace(before, after), self.gpu.arch)
        outcome = self.evaluate(workload, with_others(work, cubin=planted.cubin))
        assert isinstance(outcome, Failed), outcome
        assert outcome.kind is FailureKind.WRONG_NUMBERS

    def launches(self, workload: Workload, candidate: Candidate, count: int) -> list[Bits]:
        """The outputs of each of `count` launches; they are filled with NaN before each."""
        from tuner.workers.gpu.session import Kernels, load_runner

        prepared = self.session._prepare(problem(workload))
        return self.run(workload, load_runner(prepared, self.ready(workload, candidate).work, Kernels()), count)

    def run(self, workload: Workload, runner: Any, count: int) -> list[Bits]:
        """Same as `launches`, for a runner. Equal outputs are stored once, so that many launches need little memory."""
        prepared = self.session._prepare(problem(workload))
        left: list[Bits] = []
        for _ in range(count):
            for output in prepared.data.outputs[0].values():
                output.poison()
            assert prepared.run_once(runner, prepared.data.check_ops(0)) is None
            bits = {op: output.bits.copy() for op, output in prepared.data.outputs[0].items()}
            left.append(left[-1] if left and same(left[-1], bits) else bits)
        return left

    def kernel(self, work: Work) -> Kernel:
        """Loads the kernel."""
        from tuner.workers.gpu.launching.launch import Kernel
        from tuner.workers.gpu.library.runners import launchable_of

        return Kernel(launchable_of(work))


def same(one: Bits, other: Bits) -> bool:
    """Whether two launches gave the same bits in the same ops."""
    return one.keys() == other.keys() and all(bool((one[op] == other[op]).all()) for op in one)
