"""One machine: each target's evaluator in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tuner.core.evaluator import ArtifactFiles, Environment, Evaluator, FinalsTimes, Problem
from tuner.core.gpu import Target
from tuner.core.inspection import CounterReport, Trace
from tuner.core.outcome import Candidate, Outcome
from tuner.errors import NotFound


class _Lane:
    """One evaluator and its only thread; an evaluator takes one call at a time."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.target = evaluator.target
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"evaluate {self.target.id}")
        # Asked once, so that nobody waits behind a trial to learn it.
        self._environment = self.thread.submit(evaluator.environment)

    def environment(self) -> Environment:
        if self._environment.done() and self._environment.exception() is not None:
            self._environment = self.thread.submit(self.evaluator.environment)
        return self._environment.result()


class LocalDispatcher:
    """A `Dispatcher` over evaluators of this process."""

    def __init__(self, evaluators: Iterable[Evaluator]) -> None:
        self._lanes = {evaluator.target.id: _Lane(evaluator) for evaluator in evaluators}

    @property
    def targets(self) -> tuple[Target, ...]:
        """What can be measured on."""
        return tuple(lane.target for lane in self._lanes.values())

    def _lane(self, target_id: str) -> _Lane:
        try:
            return self._lanes[target_id]
        except KeyError:
            raise NotFound(f"no worker serves {target_id}; here are: {', '.join(self._lanes) or 'none'}") from None

    def environment(self, target_id: str) -> Environment:
        """Where the figures of a target come from.

        Raises:
            NotFound: nobody serves that target.
            WorkerError: its evaluator cannot say.
        """
        return self._lane(target_id).environment()

    def evaluate(self, target_id: str, problem: Problem, candidate: Candidate) -> Future[Outcome]:
        """Queues one candidate."""
        lane = self._lane(target_id)
        return lane.thread.submit(lane.evaluator.evaluate, problem, candidate)

    def finals(self, target_id: str, problem: Problem, candidates: tuple[Candidate, ...]) -> Future[FinalsTimes]:
        """Queues the finals."""
        lane = self._lane(target_id)
        return lane.thread.submit(lane.evaluator.finals, problem, candidates)

    def count(
        self, target_id: str, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None
    ) -> Future[CounterReport]:
        """Queues the counting of a candidate."""
        lane = self._lane(target_id)
        return lane.thread.submit(lane.evaluator.count, problem, candidate, metrics)

    def trace(self, target_id: str, problem: Problem, candidate: Candidate) -> Future[Trace]:
        """Queues the tracing of a candidate."""
        lane = self._lane(target_id)
        return lane.thread.submit(lane.evaluator.trace, problem, candidate)

    def artifact(
        self, target_id: str, problem: Problem, candidate: Candidate, extra: dict[str, Any]
    ) -> Future[ArtifactFiles]:
        """Queues the making of a candidate's files."""
        lane = self._lane(target_id)
        return lane.thread.submit(lane.evaluator.artifact, problem, candidate, extra)

    def close(self) -> None:
        """Ends the evaluators, then their threads."""
        for lane in self._lanes.values():
            lane.thread.shutdown(wait=False, cancel_futures=True)
            lane.evaluator.close()
        for lane in self._lanes.values():
            lane.thread.shutdown(wait=True)
