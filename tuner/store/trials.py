"""Trials: recorded once, in one transaction with the event that tells it and the job's running totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Double, cast, func, select, tuple_
from sqlalchemy.orm import Session

from tuner.core.insight.forecast_quality import FORECAST
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.outcome import Failed, FailureKind, Measured
from tuner.core.trial.records import Page
from tuner.errors import Conflict, NotFound
from tuner.store import events
from tuner.store.cursors import decode_cursor, encode_cursor
from tuner.store.encoding import outcome_kind, row_to_trial, trial_to_row
from tuner.store.jobs import row_of
from tuner.store.models import JobRow, TrialRow

SortKey = Literal["number", "time", "speedup"]

#: Sorts after every time, in microseconds (three million years): trials without a time come last.
_LAST = 1e20


@dataclass(frozen=True, kw_only=True)
class TrialFilter:
    """Which trials of a job, and in which order."""

    #: measured, rejected or failed.
    outcome: str | None = None
    plan_kind: PlanKind | None = None
    #: Kind of failure.
    reason: FailureKind | None = None
    #: By number, fastest first, or greatest speed-up first.
    sort: SortKey = "number"


def record(session: Session, job_id: str, trial: Trial, search_s: float) -> None:
    """Adds a trial and `search_s` seconds of search to a job.

    Raises:
        Conflict: the job is not being searched (a client may have cancelled it), or the number is not the next one.
    """
    job = row_of(session, job_id)
    if job.state != JobState.SEARCHING:
        raise Conflict(f"{job_id} is {job.state}: it takes no more trials")
    if trial.number != job.num_measured + job.num_rejected + job.num_failed:
        raise Conflict(f"{job_id} has no room for a trial {trial.number}")
    session.add(trial_to_row(job_id, trial))
    kind = outcome_kind(trial.outcome)
    setattr(job, f"num_{kind}", getattr(job, f"num_{kind}") + 1)
    job.search_s += search_s
    improved = _improve(job, trial)
    events.append(session, job_id, "trial", trial.finished_at, _summary(trial, job))
    if improved:
        events.append(session, job_id, "best", trial.finished_at, _summary(trial, job))


def _improve(job: JobRow, trial: Trial) -> bool:
    """Moves the job's best times; whether ours became faster."""
    if not isinstance(trial.outcome, Measured):
        return False
    time_us = trial.outcome.time_us
    if not trial.candidate.plan_kind.is_ours:
        job.library_us = time_us if job.library_us is None else min(job.library_us, time_us)
        return False
    if job.best_us is not None and job.best_us <= time_us:
        return False
    job.best_us = time_us
    return True


def _summary(trial: Trial, job: JobRow) -> dict[str, Any]:
    schedule, outcome = trial.candidate.schedule, trial.outcome
    if isinstance(outcome, Measured):
        figures = {"time_us": outcome.time_us, "speedup": outcome.speedup, "reason": outcome.remark}
    else:
        figures = {"time_us": None, "speedup": None, "reason": outcome.reason}
    return {
        "number": trial.number,
        "plan_kind": str(trial.candidate.plan_kind),
        "schedule": str(schedule) if schedule else None,
        "outcome": outcome_kind(outcome),
        "failure_kind": str(outcome.kind) if isinstance(outcome, Failed) else None,
        **figures,
        "best_us": job.best_us,
        "library_us": job.library_us,
        "search_s": job.search_s,
    }


def get(session: Session, job_id: str, number: int) -> Trial:
    """Raises:
    NotFound: no such job, or no such trial of it.
    """
    job = row_of(session, job_id)
    row = session.get(TrialRow, (job_id, number))
    if row is None:
        num_trials = job.num_measured + job.num_rejected + job.num_failed
        there = f"it has 0 to {num_trials - 1}" if num_trials else "it has none yet"
        raise NotFound(f"{job_id} has no trial {number}: {there}; GET /jobs/{job_id}/trials lists them")
    return row_to_trial(row)


def history(session: Session, job_id: str) -> list[Trial]:
    """All trials of a job, by number."""
    query = select(TrialRow).where(TrialRow.job_id == job_id).order_by(TrialRow.number)
    return [row_to_trial(row) for row in session.scalars(query)]


def _sort_key(sort: SortKey) -> ColumnElement[float]:
    if sort == "time":
        return func.coalesce(TrialRow.time_us, _LAST)
    if sort == "speedup":
        return func.coalesce(-TrialRow.speedup, _LAST)
    return cast(TrialRow.number, Double)


def _sort_value(row: TrialRow, sort: SortKey) -> float:
    if sort == "time":
        return _LAST if row.time_us is None else row.time_us
    if sort == "speedup":
        return _LAST if row.speedup is None else -row.speedup
    return float(row.number)


def page(session: Session, job_id: str, chosen: TrialFilter, cursor: str | None, limit: int) -> Page[Trial]:
    """One page of a job's trials.

    Raises:
        NotFound: no such job.
        InvalidInput: a cursor of another listing.
    """
    row_of(session, job_id)
    listing = f"trials of {job_id} {chosen.outcome} {chosen.plan_kind} {chosen.reason} by {chosen.sort}"
    key = _sort_key(chosen.sort)
    query = select(TrialRow).where(TrialRow.job_id == job_id)
    for column, wanted in (
        (TrialRow.outcome, chosen.outcome),
        (TrialRow.plan_kind, chosen.plan_kind),
        (TrialRow.failure_kind, chosen.reason),
    ):
        if wanted is not None:
            query = query.where(column == str(wanted))
    if cursor is not None:
        position = decode_cursor(listing, cursor, (float, int))
        query = query.where(tuple_(key, TrialRow.number) > tuple_(*position))
    rows = session.scalars(query.order_by(key, TrialRow.number).limit(limit + 1)).all()
    last = rows[limit - 1] if len(rows) > limit else None
    more = encode_cursor(listing, [_sort_value(last, chosen.sort), last.number]) if last else None
    return Page(items=[row_to_trial(row) for row in rows[:limit]], next_cursor=more)


def outcome_counts(session: Session, job_id: str) -> dict[str, int]:
    """Trials by outcome: measured, rejected, and each kind of failure that happened."""
    row_of(session, job_id)
    kind = func.coalesce(TrialRow.failure_kind, TrialRow.outcome)
    query = select(kind, func.count()).where(TrialRow.job_id == job_id).group_by(kind).order_by(kind)
    return {"measured": 0, "rejected": 0} | {name: count for name, count in session.execute(query)}  # noqa: C416


def forecasts(session: Session, job_id: str) -> list[tuple[float, float]]:
    """(forecast in microseconds, measured time over the library's of its rounds) of each plain fused trial that has
    both."""
    row_of(session, job_id)
    plain = [str(kind) for kind in PlanKind if kind.is_fused and not kind.is_programmatic]
    query = select(TrialRow.metrics, TrialRow.speedup).where(
        TrialRow.job_id == job_id, TrialRow.plan_kind.in_(plain), TrialRow.speedup.is_not(None)
    )
    return [
        (value, 1 / speedup)
        for metrics, speedup in session.execute(query.order_by(TrialRow.number))
        for tag, _, value in metrics or ()
        if tag == FORECAST and speedup
    ]


def best_so_far(session: Session, job_id: str) -> list[tuple[int, float, float | None]]:
    """(trial number, fastest of ours so far, fastest library so far), microseconds, at each measured trial of ours."""
    row_of(session, job_id)
    query = select(TrialRow.number, TrialRow.plan_kind, TrialRow.time_us).where(TrialRow.job_id == job_id)
    curve: list[tuple[int, float, float | None]] = []
    library_us: float | None = None
    for number, plan_kind, time_us in session.execute(query.order_by(TrialRow.number)):
        if time_us is None:
            continue
        if not PlanKind(plan_kind).is_ours:
            library_us = time_us if library_us is None else min(library_us, time_us)
        else:
            curve.append((number, min(time_us, curve[-1][1] if curve else time_us), library_us))
    return curve
