"""What a job loop asks of whoever carries candidates to GPUs."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from tuner.core.evaluator import ArtifactFiles, Environment, FinalsTimes, Problem
from tuner.core.gpu import Target
from tuner.core.inspection import CounterReport, Trace
from tuner.core.outcome import Candidate, Outcome


class Dispatcher(Protocol):
    """Thread-safe. A future that ends in `WorkerError` says nothing about its candidate: submit it again."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """What can be measured on."""
        ...

    def environment(self, target_id: str) -> Environment:
        """Where the figures of a target come from.

        Raises:
            NotFound: nobody serves that target.
            WorkerError: its evaluator cannot say.
        """
        ...

    def evaluate(self, target_id: str, problem: Problem, candidate: Candidate) -> Future[Outcome]:
        """Sends one candidate to be proven, built, checked and timed."""
        ...

    def finals(self, target_id: str, problem: Problem, candidates: tuple[Candidate, ...]) -> Future[FinalsTimes]:
        """Sends the finalists to be timed against each other."""
        ...

    def count(
        self, target_id: str, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None
    ) -> Future[CounterReport]:
        """Has a candidate's hardware counters read; ends in `InvalidInput` for a metric that the GPU does not know."""
        ...

    def trace(self, target_id: str, problem: Problem, candidate: Candidate) -> Future[Trace]:
        """Has a candidate traced from inside the kernel."""
        ...

    def artifact(
        self, target_id: str, problem: Problem, candidate: Candidate, extra: dict[str, Any]
    ) -> Future[ArtifactFiles]:
        """Has the files of a candidate made."""
        ...

    def close(self) -> None:
        """Ends the workers; futures still open are cancelled."""
        ...
