"""The priors of a job: chosen once, when its search begins, and stored, so that a restart uses the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tuner.core.space.joint import AnySpace
from tuner.core.trial.job import PriorsChoice, Trial
from tuner.core.trial.priors import Found, KnownWinners, Prior
from tuner.core.trial.records import JobRecord
from tuner.search.guesses.priors import Asked, choose_priors
from tuner.service.concurrency.retrying import RetryingWriter
from tuner.service.ladders.ladder_jobs import LadderJobs
from tuner.store import Store
from tuner.store.results import imports, priors


class PriorBook:
    """Finds earlier results: in the database, and among the built-in ones."""

    def __init__(
        self, store: Store, writer: RetryingWriter, winners: KnownWinners | None, clock: Callable[[], float]
    ) -> None:
        """`winners` are the built-in ones, if there are any."""
        self._store = store
        self._writer = writer
        self._winners = winners
        self._clock = clock
        self._ladder_jobs = LadderJobs(store)

    def of(self, job: JobRecord, space: AnySpace, past: list[Trial], kernel_version: str) -> tuple[Prior, ...]:
        """The priors of a job with the trials so far; empty for a search that began in an older version.

        Results of other jobs of its ladder are not an earlier search, so a fair job uses them as well.

        Raises:
            StoreUnavailable: the database stays locked.
        """
        with self._store.read() as session:
            kept = priors.chosen(session, job.id)
        if kept is not None:
            return kept
        chosen = () if past else self.by_now(job, space, kernel_version)
        self._writer.write(partial(priors.choose, job_id=job.id, priors=chosen, now=self._clock()))
        return chosen

    def by_now(self, job: JobRecord, space: AnySpace, kernel_version: str) -> tuple[Prior, ...]:
        """The priors that a job would get if it started now; nothing is stored.

        Raises:
            StoreUnavailable: the database stays locked.
        """
        asked = Asked(
            space=space,
            objective=job.spec.objective,
            kernel_version=kernel_version,
            num_trials=job.spec.budget.trials,
        )
        before = self._known(job) if job.spec.priors is PriorsChoice.NEAREST else []
        return choose_priors(asked, [*self._ladder_jobs.found(job, kernel_version), *before])

    def _known(self, job: JobRecord) -> list[Found]:
        """What is known about the job's target; for a simulated target, only simulated results."""
        with self._store.read() as session:
            found = priors.known(session, job.spec.workload, job.spec.target_id, self._store.shapes)
            found += imports.known(session, job.spec.target_id)
        return [*found, *(self._winners.of(job.spec.target_id) if self._winners else ())]
