"""A cluster worker whose GPU is held by a child process, as in production; both can be killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.service.dispatch.clusters import HERE
from tests.soak.held import child
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import FinalsTimes, Prepared, Problem
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, Outcome, Stage
from tuner.dispatch.cluster.calls import WorkerCalls
from tuner.dispatch.cluster.nodes import prepare_process, run_worker
from tuner.dispatch.cluster.security import security_for
from tuner.workers.host.asking import Asking
from tuner.workers.host.finals import hold_finals
from tuner.workers.host.gpu_process import ChildLost, GpuProcesses
from tuner.workers.protocol import messages
from tuner.workers.simulated.evaluator import PreparedModel, SimulatedEvaluator

DEADLINE_S = 30.0


class HeldEvaluator(SimulatedEvaluator):
    """The simulated evaluator, with a separate process as its GPU."""

    def __init__(self, seconds: str) -> None:
        super().__init__(parse_target("simulated:h200"))
        limits = Limits(start_deadline_s=DEADLINE_S, prepare_deadline_s=DEADLINE_S)
        self._processes = GpuProcesses(seconds, b"", limits, main=child)
        self._asking = Asking(self._processes, limits)

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Outcome:
        """Measures as a supervisor does: a candidate whose child dies has failed."""
        assert isinstance(prepared, PreparedModel)
        self._processes.ready(problem)
        work = messages.Work(plan_kind=prepared.candidate.plan_kind)
        try:
            self._processes.ask(messages.EvaluateRequest(problem=problem, work=work), DEADLINE_S)
        except ChildLost as lost:
            return Failed(stage=Stage.LAUNCH, kind=lost.kind, reason=str(lost), stage_s=dict(prepared.stage_s))
        return super().measure(problem, prepared, incumbent_speedup)

    def finals(
        self, problem: Problem, candidates: tuple[Candidate, ...], *, num_rounds: int, torch_compile: bool = False
    ) -> FinalsTimes:
        """Runs finals as a supervisor does, in a child and then in a fresh one; losing a child is not counted against a
        candidate."""
        works = tuple(messages.Work(plan_kind=candidate.plan_kind) for candidate in candidates)
        hold_finals(self._asking, self._processes, problem, works, num_rounds)
        return super().finals(problem, candidates, num_rounds=num_rounds, torch_compile=torch_compile)


def children(pid: int) -> list[int]:
    """Process ids of a worker's children that hold its GPU, or wait to."""
    texts = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    found = [int(one) for text in texts for one in text.split()]
    return [one for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


async def _run(scheduler: str, name: str, folder: str, seconds: str) -> None:
    prepare_process()
    calls = WorkerCalls(name, [HeldEvaluator(seconds)], Path(folder), Limits(), num_places=1)
    await run_worker(
        scheduler,
        security_for(scheduler, None, insecure=False),
        calls.announcement,
        calls.answer,
        asyncio.Event(),
        name=name,
        host=HERE,
        port=0,
        announce=lambda _: None,
    )


def main(arguments: list[str]) -> None:
    """Runs until it is killed; arguments: the scheduler's address, the worker's name, a folder, and the seconds for
    which the child holds a trial and the finals, "0.1/2.0"."""
    asyncio.run(_run(*arguments))
