"""A measurement lane that records when its card is busy or idle."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from tuner.core.problem.gpu import Target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import ArtifactFiles, Environment, FinalsTimes, Prepared, Problem, Quarantine
from tuner.core.trial.outcome import Outcome
from tuner.core.trial.reports.baselines import Baseline, BaselineTime
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace
from tuner.dispatch import MeasureLane
from tuner.service.metrics import BusyClock

T = TypeVar("T")


class WatchedLane:
    """Wraps a `MeasureLane`, and times the calls that need the card."""

    def __init__(self, lane: MeasureLane, worker: int, busy: BusyClock) -> None:
        self._lane = lane
        #: The number of its card among the target's cards.
        self.worker = worker
        self._busy = busy

    @property
    def target(self) -> Target:
        """Its target."""
        return self._lane.target

    @property
    def kinds(self) -> Mapping[str, int]:
        """The kinds of ops that its worker supports."""
        return self._lane.kinds

    @property
    def quarantine(self) -> Quarantine | None:
        """Why it cannot measure now."""
        return self._lane.quarantine

    def environment(self) -> Environment:
        """The source of its figures."""
        return self._lane.environment()

    def _watched(self, future: Future[T]) -> Future[T]:
        self._busy.watch(future)
        return future

    def probe(self) -> Future[None]:
        """Queues a probe of the card."""
        return self._watched(self._lane.probe())

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Future[Outcome]:
        """Queues one candidate."""
        return self._watched(self._lane.measure(problem, prepared, incumbent_speedup))

    def finals(
        self, problem: Problem, candidates: tuple[Candidate, ...], num_rounds: int, *, torch_compile: bool = False
    ) -> Future[FinalsTimes]:
        """Queues the finals."""
        return self._watched(self._lane.finals(problem, candidates, num_rounds, torch_compile=torch_compile))

    def beside(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        baselines: tuple[Baseline, ...],
        num_rounds: int,
        winner: int,
    ) -> Future[tuple[BaselineTime, ...]]:
        """Queues the timing of a user's own programs."""
        return self._watched(self._lane.beside(problem, candidates, baselines, num_rounds, winner))

    def energy(self, problem: Problem, candidate: Candidate) -> Future[EnergyReport]:
        """Queues the measurement of a candidate's energy."""
        return self._watched(self._lane.energy(problem, candidate))

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> Future[CounterReport]:
        """Queues a measurement of a candidate's counters."""
        return self._watched(self._lane.count(problem, candidate, metrics))

    def trace(self, problem: Problem, candidate: Candidate) -> Future[Trace]:
        """Queues a trace of a candidate."""
        return self._watched(self._lane.trace(problem, candidate))

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> Future[ArtifactFiles]:
        """Queues building a candidate's files, which does not need the card."""
        return self._lane.artifact(problem, candidate, extra)
