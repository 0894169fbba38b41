"""One machine: each evaluator in a thread of its own; cards of one model serve one target side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from tuner.core.problem.gpu import Target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import ArtifactFiles, Environment, Evaluator, FinalsTimes, Problem, Quarantine
from tuner.core.trial.inspection import CounterReport, Trace
from tuner.core.trial.outcome import Outcome
from tuner.errors import NotFound, Quarantined

P = ParamSpec("P")
T = TypeVar("T")


class _Lane:
    """One evaluator and its only thread; an evaluator takes one call at a time."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.target = evaluator.target
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"evaluate {self.target.id}")
        #: Set by the lane's thread, read by any.
        self.quarantine: Quarantine | None = None
        # Asked once, so that nobody waits behind a trial to learn it.
        self._environment = self.thread.submit(evaluator.environment)

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queues a call that needs the card."""
        return self.thread.submit(self._watched, partial(call, *args, **kwargs))

    def _watched(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Quarantined as error:
            since = self.quarantine.since if self.quarantine else time.time()
            self.quarantine = Quarantine(reason=str(error), since=since)
            raise

    def probe(self) -> None:
        self.evaluator.probe()
        self.quarantine = None

    def environment(self) -> Environment:
        if self._environment.done() and self._environment.exception() is not None:
            self._environment = self.thread.submit(self.evaluator.environment)
        return self._environment.result()


class LocalDispatcher:
    """A `Dispatcher` over evaluators of this process."""

    def __init__(self, evaluators: Iterable[Evaluator]) -> None:
        self._lanes: dict[str, list[_Lane]] = {}
        for evaluator in evaluators:
            self._lanes.setdefault(evaluator.target.id, []).append(_Lane(evaluator))

    @property
    def targets(self) -> tuple[Target, ...]:
        """What can be measured on, each once."""
        return tuple(lanes[0].target for lanes in self._lanes.values())

    def num_workers(self, target_id: str) -> int:
        """How many evaluators serve a target; 0 where none does."""
        return len(self._lanes.get(target_id, ()))

    def _lane(self, target_id: str, worker: int) -> _Lane:
        try:
            return self._lanes[target_id][worker]
        except KeyError:
            raise NotFound(f"no worker serves {target_id}; here are: {', '.join(self._lanes) or 'none'}") from None

    def environment(self, target_id: str, worker: int = 0) -> Environment:
        """Where the figures of a target come from.

        Raises:
            NotFound: nobody serves that target.
            WorkerError: its evaluator cannot say.
        """
        return self._lane(target_id, worker).environment()

    def quarantine(self, target_id: str, worker: int | None = None) -> Quarantine | None:
        """Why nothing is measured now, on a worker or on all of a target's; None where something is, or nobody serves
        the target."""
        lanes = self._lanes.get(target_id, [])
        found = [lane.quarantine for lane in (lanes if worker is None else lanes[worker : worker + 1])]
        return found[0] if found and all(found) else None

    def probe(self, target_id: str, worker: int = 0) -> Future[None]:
        """Queues a look at the card."""
        lane = self._lane(target_id, worker)
        return lane.submit(lane.probe)

    def evaluate(
        self,
        target_id: str,
        problem: Problem,
        candidate: Candidate,
        incumbent_speedup: float | None = None,
        worker: int = 0,
    ) -> Future[Outcome]:
        """Queues one candidate."""
        lane = self._lane(target_id, worker)
        return lane.submit(lane.evaluator.evaluate, problem, candidate, incumbent_speedup)

    def finals(
        self, target_id: str, problem: Problem, candidates: tuple[Candidate, ...], num_rounds: int, worker: int = 0
    ) -> Future[FinalsTimes]:
        """Queues the finals."""
        lane = self._lane(target_id, worker)
        return lane.submit(lane.evaluator.finals, problem, candidates, num_rounds=num_rounds)

    def count(
        self, target_id: str, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None, worker: int = 0
    ) -> Future[CounterReport]:
        """Queues the counting of a candidate."""
        lane = self._lane(target_id, worker)
        return lane.submit(lane.evaluator.count, problem, candidate, metrics)

    def trace(self, target_id: str, problem: Problem, candidate: Candidate, worker: int = 0) -> Future[Trace]:
        """Queues the tracing of a candidate."""
        lane = self._lane(target_id, worker)
        return lane.submit(lane.evaluator.trace, problem, candidate)

    def artifact(
        self, target_id: str, problem: Problem, candidate: Candidate, extra: dict[str, Any], worker: int = 0
    ) -> Future[ArtifactFiles]:
        """Queues the making of a candidate's files."""
        lane = self._lane(target_id, worker)
        return lane.thread.submit(lane.evaluator.artifact, problem, candidate, extra)

    def close(self) -> None:
        """Ends the evaluators, then their threads."""
        every = [lane for lanes in self._lanes.values() for lane in lanes]
        for lane in every:
            lane.thread.shutdown(wait=False, cancel_futures=True)
            lane.evaluator.close()
        for lane in every:
            lane.thread.shutdown(wait=True)
