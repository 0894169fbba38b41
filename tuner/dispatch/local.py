"""One machine: its cores build ahead for all its cards, and each card has a lane with its own thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from tuner.core.problem.gpu import Target
from tuner.core.problem.op_kinds import kind_versions
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.believable import believe
from tuner.core.trial.evaluator import (
    ArtifactFiles,
    Environment,
    Evaluator,
    FinalsTimes,
    Preparation,
    Prepared,
    Problem,
    Quarantine,
)
from tuner.core.trial.outcome import Failed, FailureKind, Outcome, Stage
from tuner.core.trial.reports.baselines import Baseline, BaselineTime
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace
from tuner.errors import NotFound, Quarantined, Unbelievable
from tuner.workers.builder.places import places_here

P = ParamSpec("P")
T = TypeVar("T")

#: Threads per parallel build. A thread that waits for another build of the same source uses no core, so it should not
#: keep other candidates from being built.
THREADS_PER_PLACE = 2


class Preparer(Protocol):
    """The part of an evaluator that needs no card."""

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        """Same as `Evaluator.prepare`; any thread may call it."""
        ...


class LocalBuilds:
    """A `BuildPool`: an evaluator's `prepare` in threads that the pools of other cards share."""

    def __init__(self, evaluator: Preparer, threads: ThreadPoolExecutor, num_places: int) -> None:
        """The creator of `threads` ends them; their current work ends with the evaluator."""
        self._evaluator = evaluator
        self._threads = threads
        self._num_places = num_places

    @property
    def num_places(self) -> int:
        """How many builds run at a time."""
        return self._num_places

    def prepare(self, problem: Problem, candidate: Candidate) -> Future[Preparation]:
        """Queues one candidate."""
        return self._threads.submit(self._evaluator.prepare, problem, candidate)


class LocalLane:
    """A `MeasureLane`: one evaluator and its only thread."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._target = evaluator.target
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"measure {self._target.id}")
        #: Set by the lane's thread, read by any thread.
        self._quarantine: Quarantine | None = None
        # The environment is read once, so that trials do not wait for it.
        self._environment = self._thread.submit(evaluator.environment)

    @property
    def target(self) -> Target:
        """The target that it measures on."""
        return self._target

    @property
    def kinds(self) -> Mapping[str, int]:
        """The kinds of ops that this process supports."""
        return kind_versions()

    @property
    def quarantine(self) -> Quarantine | None:
        """Why nothing is measured now."""
        return self._quarantine

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queues a call that needs the card."""
        return self._thread.submit(self._watched, partial(call, *args, **kwargs))

    def _watched(self, call: Callable[[], T]) -> T:
        try:
            found = call()
            believe(found)
            return found
        except Quarantined as error:
            since = self._quarantine.since if self._quarantine else time.time()
            self._quarantine = Quarantine(reason=str(error), since=since)
            raise

    def _probe(self) -> None:
        self._evaluator.probe()
        self._quarantine = None

    def probe(self) -> Future[None]:
        """Queues a probe of the card."""
        return self._submit(self._probe)

    def environment(self) -> Environment:
        """The environment as read at the start, or later if it could not be read before."""
        if self._environment.done() and self._environment.exception() is not None:
            self._environment = self._thread.submit(self._evaluator.environment)
        return self._environment.result()

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Future[Outcome]:
        """Queues one candidate."""
        return self._submit(self._measure, problem, prepared, incumbent_speedup)

    def _measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None) -> Outcome:
        """The outcome; implausible figures are an error of this machine, and the job continues."""
        outcome = self._evaluator.measure(problem, prepared, incumbent_speedup)
        try:
            believe(outcome)
        except Unbelievable as error:
            return Failed(stage=Stage.TIME, kind=FailureKind.INTERNAL, reason=f"its answer is not believable: {error}")
        return outcome

    def finals(
        self, problem: Problem, candidates: tuple[Candidate, ...], num_rounds: int, *, torch_compile: bool = False
    ) -> Future[FinalsTimes]:
        """Queues the finals."""
        finals = partial(self._evaluator.finals, num_rounds=num_rounds, torch_compile=torch_compile)
        return self._submit(finals, problem, candidates)

    def beside(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        baselines: tuple[Baseline, ...],
        num_rounds: int,
        winner: int,
    ) -> Future[tuple[BaselineTime, ...]]:
        """Queues the timing of a user's own programs."""
        beside = partial(self._evaluator.beside, num_rounds=num_rounds, winner=winner)
        return self._submit(beside, problem, candidates, baselines)

    def energy(self, problem: Problem, candidate: Candidate) -> Future[EnergyReport]:
        """Queues the measurement of a candidate's energy."""
        return self._submit(self._evaluator.energy, problem, candidate)

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> Future[CounterReport]:
        """Queues a measurement of a candidate's counters."""
        return self._submit(self._evaluator.count, problem, candidate, metrics)

    def trace(self, problem: Problem, candidate: Candidate) -> Future[Trace]:
        """Queues a trace of a candidate."""
        return self._submit(self._evaluator.trace, problem, candidate)

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> Future[ArtifactFiles]:
        """Queues building a candidate's files."""
        return self._submit(self._evaluator.artifact, problem, candidate, extra)

    def close(self) -> None:
        """Ends the evaluator, and then its thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._evaluator.close()

    def join(self) -> None:
        """Waits until the thread has ended."""
        self._thread.shutdown(wait=True)


class LocalDispatcher:
    """A `Dispatcher` for evaluators of this process."""

    def __init__(self, evaluators: Iterable[Evaluator], *, num_places: int | None = None) -> None:
        """`num_places` is the number of parallel builds; by default it is chosen for this machine."""
        places = num_places or places_here()
        self._num_places = places
        self._threads = ThreadPoolExecutor(THREADS_PER_PLACE * places, thread_name_prefix="prepare")
        self._workers: dict[str, list[tuple[LocalLane, LocalBuilds]]] = {}
        for evaluator in evaluators:
            worker = LocalLane(evaluator), LocalBuilds(evaluator, self._threads, places)
            self._workers.setdefault(evaluator.target.id, []).append(worker)

    @property
    def num_places(self) -> int:
        """How many builds run at a time."""
        return self._num_places

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets that can be measured on, each once."""
        return tuple(workers[0][0].target for workers in self._workers.values())

    @property
    def absence(self) -> str:
        """Empty, since no worker can join later."""
        return ""

    def num_workers(self, target_id: str) -> int:
        """How many evaluators have a target; 0 if none does."""
        return len(self._workers.get(target_id, ()))

    def _worker(self, target_id: str, worker: int) -> tuple[LocalLane, LocalBuilds]:
        try:
            return self._workers[target_id][worker]
        except KeyError:
            raise NotFound(
                f"no worker serves {target_id}; available are: {', '.join(self._workers) or 'none'}"
            ) from None

    def lane(self, target_id: str, worker: int = 0) -> LocalLane:
        """The queue for a worker's card.

        Raises:
            NotFound: no evaluator has that target.
        """
        return self._worker(target_id, worker)[0]

    def watch(self, joined: Callable[[Target, int], None]) -> None:
        """Reports the existing workers; none can join later."""
        for target in self.targets:
            for worker in range(self.num_workers(target.id)):
                joined(target, worker)

    def builds_by(self, preparer: Preparer) -> LocalBuilds:
        """A pool with the same build slots, for candidates of a target without a card here."""
        return LocalBuilds(preparer, self._threads, self._num_places)

    def builds(self, target_id: str, worker: int = 0) -> LocalBuilds:
        """The build pool for a worker's card.

        Raises:
            NotFound: no evaluator has that target.
        """
        return self._worker(target_id, worker)[1]

    def quarantine(self, target_id: str, worker: int | None = None) -> Quarantine | None:
        """Why a worker, or all workers of a target, cannot measure now; None if one can, or if no worker has the
        target."""
        workers = self._workers.get(target_id, [])
        found = [lane.quarantine for lane, _ in (workers if worker is None else workers[worker : worker + 1])]
        return found[0] if found and all(found) else None

    def close(self) -> None:
        """Ends the builds and the evaluators, then their threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        lanes = [lane for workers in self._workers.values() for lane, _ in workers]
        for lane in lanes:
            lane.close()
        for lane in lanes:
            lane.join()
        self._threads.shutdown(wait=True)
