"""What a job loop asks of whoever carries candidates to GPUs."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from tuner.core.problem.gpu import Target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import ArtifactFiles, Environment, FinalsTimes, Problem, Quarantine
from tuner.core.trial.inspection import CounterReport, Trace
from tuner.core.trial.outcome import Outcome


class Dispatcher(Protocol):
    """Thread-safe. A future that ends in `WorkerError` says nothing about its candidate: submit it again; one
    that ends in `Quarantined`, when a probe has found the card fit.

    A target may have several workers, cards of one model, counted from 0; a job stays with one of them.
    """

    @property
    def targets(self) -> tuple[Target, ...]:
        """What can be measured on, each once."""
        ...

    def num_workers(self, target_id: str) -> int:
        """How many workers serve a target; 0 where nobody does."""
        ...

    def environment(self, target_id: str, worker: int = 0) -> Environment:
        """Where the figures of a target come from.

        Raises:
            NotFound: nobody serves that target.
            WorkerError: its evaluator cannot say.
        """
        ...

    def quarantine(self, target_id: str, worker: int | None = None) -> Quarantine | None:
        """Why nothing is measured now, on a worker or on a target, all of whose workers then are in quarantine; None
        where something is. Never waits."""
        ...

    def probe(self, target_id: str, worker: int = 0) -> Future[None]:
        """Has the card looked at; ends in `Quarantined` where it is not fit, and ends its quarantine where it is."""
        ...

    def evaluate(
        self,
        target_id: str,
        problem: Problem,
        candidate: Candidate,
        incumbent_speedup: float | None = None,
        worker: int = 0,
    ) -> Future[Outcome]:
        """Sends one candidate to be proven, built, checked and timed; truncated where it is certainly far worse than
        `incumbent_speedup`, the best so far against the library."""
        ...

    def finals(
        self, target_id: str, problem: Problem, candidates: tuple[Candidate, ...], num_rounds: int, worker: int = 0
    ) -> Future[FinalsTimes]:
        """Sends the finalists to be timed against each other, `num_rounds` in each of two processes."""
        ...

    def count(
        self, target_id: str, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None, worker: int = 0
    ) -> Future[CounterReport]:
        """Has a candidate's hardware counters read; ends in `InvalidInput` for a metric that the GPU does not know."""
        ...

    def trace(self, target_id: str, problem: Problem, candidate: Candidate, worker: int = 0) -> Future[Trace]:
        """Has a candidate traced from inside the kernel."""
        ...

    def artifact(
        self, target_id: str, problem: Problem, candidate: Candidate, extra: dict[str, Any], worker: int = 0
    ) -> Future[ArtifactFiles]:
        """Has the files of a candidate made."""
        ...

    def close(self) -> None:
        """Ends the workers; futures still open are cancelled."""
        ...
