"""The cards of a service: what each is doing, and what it has done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core.problem.gpu import Target
from tuner.core.trial.evaluator import Environment, Quarantine
from tuner.core.trial.job import JobState
from tuner.core.trial.records import JobRecord
from tuner.dispatch import Dispatcher
from tuner.dispatch.machine import CardReading, machine_cards
from tuner.errors import WorkerError
from tuner.service.metrics import CardWork, Metrics
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.listings import failures
from tuner.store.listings.failures import JobFailures

#: Maximum number of running jobs that are listed; at most one per card runs.
_MAX_RUNNING = 100
#: Maximum number of listed jobs with failed trials.
_MAX_FAILED = 20


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A card, or the simulated GPU."""

    target: Target
    #: Its number among the target's workers.
    number: int
    #: None if its evaluator does not report it.
    environment: Environment | None
    quarantine: Quarantine | None
    work: CardWork


def num_fit(dispatcher: Dispatcher, target_id: str) -> int:
    """The number of a target's workers that are not in quarantine."""
    workers = range(dispatcher.num_workers(target_id))
    return sum(dispatcher.quarantine(target_id, number) is None for number in workers)


class Fleet:
    """Reads the data of the fleet's page. Thread-safe."""

    def __init__(self, store: Store, dispatcher: Dispatcher, metrics: Metrics) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._metrics = metrics

    def num_fit(self, target_id: str) -> int:
        """The number of a target's cards that can run jobs."""
        return num_fit(self._dispatcher, target_id)

    def workers(self) -> list[Worker]:
        """All workers, by target and number."""
        return [
            Worker(
                target=target,
                number=number,
                environment=self._environment(target.id, number),
                quarantine=self._dispatcher.quarantine(target.id, number),
                work=self._metrics.card(target.id, number),
            )
            for target in self._dispatcher.targets
            for number in range(self._dispatcher.num_workers(target.id))
        ]

    def running(self) -> list[JobRecord]:
        """Running jobs."""
        with self._store.read() as session:
            return [
                job
                for state in (JobState.SEARCHING, JobState.FINALS)
                for job in jobs.page(session, None, _MAX_RUNNING, jobs.JobFilter(state=state)).items
            ]

    def failures(self) -> list[JobFailures]:
        """The newest jobs with failed trials, and how they failed."""
        with self._store.read() as session:
            return failures.newest(session, _MAX_FAILED)

    def counts(self) -> dict[tuple[str, str], int]:
        """Jobs by target and state."""
        with self._store.read() as session:
            return jobs.counts_by_state(session)

    def cards(self) -> Sequence[CardReading]:
        """The cards of this machine with the driver's current readings."""
        return machine_cards()

    def _environment(self, target_id: str, number: int) -> Environment | None:
        try:
            return self._dispatcher.lane(target_id, number).environment()
        except WorkerError:
            return None
