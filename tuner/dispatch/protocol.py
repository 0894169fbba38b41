"""The job loop's interface to the code that sends candidates to builders and GPUs.

Implementations are tested with the contracts in `tests/service/dispatch/contracts.py`.
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
    """Prepares candidates for one target, several at a time, without a card. Thread-safe.

    A candidate's failure is an outcome, never an exception of the future. After `WorkerError`, prepare the candidate
    again. Parts that two candidates share are built once, even if they arrive at the same time.
    """

    @property
    def num_places(self) -> int:
        """Maximum parallel builds; pools of one machine may share them."""
        ...

    def prepare(self, problem: Problem, candidate: Candidate) -> Future[Preparation]:
        """Proves, renders and builds a candidate; a future that is cancelled before its turn costs nothing."""
        ...


class MeasureLane(Protocol):
    """A card and its queue of calls, which run one at a time, in order of arrival. Thread-safe.

    After `WorkerError`, send the candidate again; after `Quarantined`, send it once a probe has found the card usable.
    A call that is cancelled before its turn never reaches the card.
    """

    @property
    def target(self) -> Target:
        """The target that it measures on."""
        ...

    @property
    def kinds(self) -> Mapping[str, int]:
        """The kinds of ops that its worker supports, and their versions; problems with other kinds must not be sent to
        it."""
        ...

    @property
    def quarantine(self) -> Quarantine | None:
        """Why it cannot measure now; None if it can. Never waits."""
        ...

    def environment(self) -> Environment:
        """Where its figures come from.

        Raises:
            WorkerError: its evaluator does not know it.
        """
        ...

    def probe(self) -> Future[None]:
        """Probes the card; raises `Quarantined` if it is not usable, and ends its quarantine if it is."""
        ...

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Future[Outcome]:
        """Checks and times a candidate prepared by a build pool of the same target. Measurement is truncated if the
        candidate is certainly far worse than `incumbent_speedup`, the best speed-up over the library so far."""
        ...

    def finals(
        self, problem: Problem, candidates: tuple[Candidate, ...], num_rounds: int, *, torch_compile: bool = False
    ) -> Future[FinalsTimes]:
        """Times the finalists against each other, `num_rounds` rounds in each of two processes, and against
        torch.compile if requested."""
        ...

    def beside(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        baselines: tuple[Baseline, ...],
        num_rounds: int,
        winner: int,
    ) -> Future[tuple[BaselineTime, ...]]:
        """Times a user's own programs in rounds with the finalists, the first of which is the library. Possible only in
        the process that received them."""
        ...

    def energy(self, problem: Problem, candidate: Candidate) -> Future[EnergyReport]:
        """Measures the energy per run of a candidate."""
        ...

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> Future[CounterReport]:
        """Reads a candidate's hardware counters; raises `InvalidInput` for a metric that the GPU does not have."""
        ...

    def trace(self, problem: Problem, candidate: Candidate) -> Future[Trace]:
        """Traces a candidate from inside the kernel."""
        ...

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> Future[ArtifactFiles]:
        """Makes the files of a candidate."""
        ...


class Dispatcher(Protocol):
    """A service's build pools and measurement lanes, which end when it is closed. Thread-safe.

    A target may have several workers, which are cards of one model, counted from 0. A job stays with one of them, and
    idle ones may measure for its search.
    """

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets that can be measured on, each once."""
        ...

    @property
    def absence(self) -> str:
        """Why there was never a worker although some are expected; empty otherwise."""
        ...

    def num_workers(self, target_id: str) -> int:
        """How many workers have a target; 0 if none does."""
        ...

    def lane(self, target_id: str, worker: int = 0) -> MeasureLane:
        """The queue for a worker's card.

        Raises:
            NotFound: no worker has that target.
        """
        ...

    def builds(self, target_id: str, worker: int = 0) -> BuildPool:
        """The build pool for a worker's card.

        Raises:
            NotFound: no worker has that target.
        """
        ...

    def quarantine(self, target_id: str, worker: int | None = None) -> Quarantine | None:
        """Why a worker, or all workers of a target, cannot measure now; None if one can, or if no worker has the
        target. Never waits."""
        ...

    def watch(self, joined: Callable[[Target, int], None]) -> None:
        """Calls `joined` with the target and the number of each worker: for existing ones before this returns, for
        later ones as they arrive, from any thread. A worker that leaves is in quarantine until it returns."""
        ...

    def close(self) -> None:
        """Ends the workers; futures still open are cancelled."""
        ...
