"""What a job loop asks of whoever carries candidates to build machines and to GPUs.

Who implements one of these tests it by the contracts in `tests/service/dispatch/contracts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from tuner.core.problem.gpu import Target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import (
    ArtifactFiles,
    Environment,
    FinalsTimes,
    Preparation,
    Prepared,
    Problem,
    Quarantine,
)
from tuner.core.trial.outcome import Outcome
from tuner.core.trial.reports.baselines import Baseline, BaselineTime
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace


class BuildPool(Protocol):
    """Makes the candidates of one target ready, several at a time; needs no card. Thread-safe.

    A future never ends in a candidate's fault: that is an outcome. One that ends in `WorkerError` says nothing about
    its candidate: prepare it again. What two candidates share is built once, though they come at the same time.
    """

    @property
    def num_places(self) -> int:
        """How many builds run at a time, at most; pools of one machine may share these."""
        ...

    def prepare(self, problem: Problem, candidate: Candidate) -> Future[Preparation]:
        """Has one candidate proven, rendered and built; a future that is cancelled before its turn costs nothing."""
        ...


class MeasureLane(Protocol):
    """One card and its line of calls: they run one at a time, in the order in which they came. Thread-safe.

    A future that ends in `WorkerError` says nothing about its candidate: send it again; one that ends in `Quarantined`,
    when a probe has found the card fit. One that is cancelled before its turn never reaches the card.
    """

    @property
    def target(self) -> Target:
        """What it measures on."""
        ...

    @property
    def kinds(self) -> Mapping[str, int]:
        """The kinds of ops that its worker has, and the version of each: problems with others are not for it."""
        ...

    @property
    def quarantine(self) -> Quarantine | None:
        """Why nothing is measured now; None where something is. Never waits."""
        ...

    def environment(self) -> Environment:
        """Where its figures come from.

        Raises:
            WorkerError: its evaluator cannot say.
        """
        ...

    def probe(self) -> Future[None]:
        """Has the card looked at; ends in `Quarantined` where it is not fit, and ends its quarantine where it is."""
        ...

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Future[Outcome]:
        """Has checked and timed what a build pool of the same target prepared; truncated where it is certainly far
        worse than `incumbent_speedup`, the best so far against the library."""
        ...

    def finals(
        self, problem: Problem, candidates: tuple[Candidate, ...], num_rounds: int, *, torch_compile: bool = False
    ) -> Future[FinalsTimes]:
        """Has the finalists timed against each other, `num_rounds` in each of two processes, and beside torch.compile
        where that is asked."""
        ...

    def beside(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        baselines: tuple[Baseline, ...],
        num_rounds: int,
        winner: int,
    ) -> Future[tuple[BaselineTime, ...]]:
        """Has a user's own programs timed in rounds with the finalists, of which the library is the first; only the
        process that was given them can."""
        ...

    def energy(self, problem: Problem, candidate: Candidate) -> Future[EnergyReport]:
        """Has the energy of a run of a candidate measured."""
        ...

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> Future[CounterReport]:
        """Has a candidate's hardware counters read; ends in `InvalidInput` for a metric that the GPU does not know."""
        ...

    def trace(self, problem: Problem, candidate: Candidate) -> Future[Trace]:
        """Has a candidate traced from inside the kernel."""
        ...

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> Future[ArtifactFiles]:
        """Has the files of a candidate made."""
        ...


class Dispatcher(Protocol):
    """All build pools and measure lanes of a service, which end with it. Thread-safe.

    A target may have several workers, cards of one model, counted from 0; a job stays with one of them, and
    those without a job may measure for its search.
    """

    @property
    def targets(self) -> tuple[Target, ...]:
        """What can be measured on, each once."""
        ...

    @property
    def absence(self) -> str:
        """Why no worker was ever there, though some are waited for; empty otherwise."""
        ...

    def num_workers(self, target_id: str) -> int:
        """How many workers serve a target; 0 where nobody does."""
        ...

    def lane(self, target_id: str, worker: int = 0) -> MeasureLane:
        """The line in front of a worker's card.

        Raises:
            NotFound: nobody serves that target.
        """
        ...

    def builds(self, target_id: str, worker: int = 0) -> BuildPool:
        """What makes candidates ready for a worker's card.

        Raises:
            NotFound: nobody serves that target.
        """
        ...

    def quarantine(self, target_id: str, worker: int | None = None) -> Quarantine | None:
        """Why nothing is measured now, on a worker or on a target, all of whose workers then are in quarantine; None
        where something is, or nobody serves the target. Never waits."""
        ...

    def watch(self, joined: Callable[[Target, int], None]) -> None:
        """Has `joined` called with the target and the number of each worker: of those that are there before this
        returns, of later ones as they come, by any thread. A worker that leaves is in quarantine until it is back."""
        ...

    def close(self) -> None:
        """Ends the workers; futures still open are cancelled."""
        ...
