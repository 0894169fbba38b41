"""Queries about the trials and events of a job; they change nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tuner.core.insight.forecast_quality import ForecastQuality, judge_forecasts
from tuner.core.schedule.candidate import launched
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import FailureKind, Measured
from tuner.core.trial.priors import PriorUse
from tuner.core.trial.records import Event, Page
from tuner.dispatch.sources import source_of
from tuner.errors import NotFound
from tuner.service.paging import check_limit
from tuner.store import Store
from tuner.store.engine.commits import Wake
from tuner.store.jobs import events, jobs
from tuner.store.results import priors
from tuner.store.trials import trials


class TrialReader:
    """Reads a job's trials and events. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def trials(
        self,
        job_id: str,
        *,
        cursor: str | None = None,
        limit: int = 50,
        outcome: str | None = None,
        plan_kind: PlanKind | None = None,
        reason: FailureKind | None = None,
        sort: trials.SortKey = "number",
    ) -> Page[Trial]:
        """Trials of a job; `time` sorts by time, `speedup` by descending speed-up, with unmeasured trials last.

        Raises:
            NotFound: no such job.
            InvalidInput: the cursor belongs to another listing, or the limit is out of range.
        """
        check_limit(limit)
        chosen = trials.TrialFilter(outcome=outcome, plan_kind=plan_kind, reason=reason, sort=sort)
        with self._store.read() as session:
            return trials.page(session, job_id, chosen, cursor, limit)

    def trial(self, job_id: str, number: int) -> Trial:
        """One trial.

        Raises:
            NotFound: no such job or trial.
        """
        with self._store.read() as session:
            return trials.get(session, job_id, number)

    def fastest(self, job_id: str) -> dict[PlanKind, tuple[float, int]]:
        """The fastest measured trial of each of our plan kinds that has one: its time in microseconds, and its number.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            return trials.fastest(session, job_id)

    def source(self, job_id: str, number: int) -> str:
        """The source of a trial's kernel.

        Raises:
            NotFound: no such job or trial, or the trial does not run a generated kernel.
            IllegalSchedule: its tiling is no longer legal.
        """
        with self._store.read() as session:
            job, trial = jobs.get(session, job_id), trials.get(session, job_id, number)
        if trial.candidate.schedule is None:
            raise NotFound(f"trial {number} of {job_id} runs the library's kernels, whose source is not available")
        workload, _ = launched(job.spec.workload, trial.candidate)
        return source_of(workload, trial.candidate.schedule)

    def samples(self, job_id: str, number: int) -> tuple[Trial, Measured]:
        """A trial and its outcome with its rounds.

        Raises:
            NotFound: no such job or trial, or the trial has no raw samples, with the reason.
        """
        with self._store.read() as session:
            trial = trials.get(session, job_id, number)
        if not isinstance(trial.outcome, Measured):
            raise NotFound(f"trial {number} of {job_id} was not measured: {trial.outcome.reason}")
        if not trial.outcome.rounds:
            raise NotFound(f"the samples of trial {number} of {job_id} are gone: tuner gc removed them")
        return trial, trial.outcome

    def outcome_counts(self, job_id: str) -> dict[str, int]:
        """Trials by outcome: measured, rejected, and each kind of failure that occurred.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            return trials.outcome_counts(session, job_id)

    def best_so_far(self, job_id: str) -> list[tuple[int, float, float | None]]:
        """(trial number, its time, the library's time), microseconds, of each of our trials that was the best so far.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            return trials.best_so_far(session, job_id)

    def forecast_quality(self, job_id: str) -> ForecastQuality:
        """How well the simulator's forecasts ranked the job's fused trials.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            return judge_forecasts(trials.forecasts(session, job_id))

    def events(self, job_id: str, after_id: int = 0, limit: int = 100) -> list[Event]:
        """A job's events after the one with id `after_id`, oldest first.

        Raises:
            NotFound: no such job.
            InvalidInput: the limit is out of range.
        """
        check_limit(limit)
        with self._store.read() as session:
            jobs.row_of(session, job_id)
            return events.after(session, job_id, after_id, limit)

    def listening(self, job_id: str, wake: Wake) -> AbstractContextManager[None]:
        """Within the block, `wake` is set whenever the job may have new events."""
        return self._store.commits.listening([job_id], wake)

    def priors(self, job_id: str) -> list[PriorUse]:
        """The priors of the job's search, and the result of each prior; empty before the search has begun.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            return priors.uses(session, job_id)
