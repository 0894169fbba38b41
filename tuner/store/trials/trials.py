"""Trials: recorded once, in one transaction with their event and the job's running totals."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import bindparam, func, literal_column, select
from sqlalchemy.orm import Session

from tuner.core.insight.forecast_quality import FORECAST
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.outcome import Failed, Measured
from tuner.core.trial.records import Page
from tuner.errors import Conflict, NotFound
from tuner.store.engine.cursors import decode_cursor, encode_cursor
from tuner.store.jobs import events
from tuner.store.jobs.jobs import check_there, row_of, to_record
from tuner.store.tables.encoding import outcome_kind, row_to_trial, trial_to_row
from tuner.store.tables.models import EventRow, JobRow, TrialRow
from tuner.store.trials.places import SortKey, TrialFilter, find_places

__all__ = [
    "SortKey", "TrialFilter", "best_so_far", "fastest", "forecasts", "get", "history", "outcome_counts", "page",
    "record",
]  # fmt: skip

#: In the order of an index that covers the query, so that for a kind without a time not all trials are searched.
_FASTEST = (
    select(TrialRow.time_us, TrialRow.number)
    .where(
        TrialRow.job_id == bindparam("job_id"),
        TrialRow.plan_kind == bindparam("kind"),
        TrialRow.time_us.is_not(None),
    )
    .order_by(TrialRow.time_us, TrialRow.speedup, TrialRow.number)
    .limit(1)
)

#: Maximum number of a job's trials on which its forecasts are evaluated.
MAX_FORECASTS = 1000


def record(
    session: Session, job_id: str, trial: Trial, search_s: float, *, card_s: float = 0.0, since_progress: int = 0
) -> None:
    """Adds a trial and `search_s` seconds of search to a job. The card was busy with the trial for `card_s` of them;
    `since_progress` trials were recorded since the last progress.

    Raises:
        Conflict: the job is not being searched (a client may have cancelled it), or the number is not the next one.
    """
    job = row_of(session, job_id)
    if job.state != JobState.SEARCHING:
        raise Conflict(f"{job_id} has the state {job.state}: it accepts no more trials")
    if trial.number != job.num_measured + job.num_rejected + job.num_failed:
        raise Conflict(f"{job_id} expects a different number than {trial.number} for its next trial")
    row = trial_to_row(job_id, trial)
    session.add(row)
    job.samples_bytes += len(row.samples or b"")
    kind = outcome_kind(trial.outcome)
    setattr(job, f"num_{kind}", getattr(job, f"num_{kind}") + 1)
    job.search_s += search_s
    job.card_s = None if job.card_s is None else job.card_s + card_s
    job.since_progress = since_progress
    improved = _improve(job, trial)
    events.append(session, job_id, "trial", trial.finished_at, _summary(trial, job))
    if improved:
        events.append(session, job_id, "best", trial.finished_at, _summary(trial, job))


def _improve(job: JobRow, trial: Trial) -> bool:
    """Updates the job's best figures; returns whether our fastest candidate changed, judged by its ratio to the library
    in the same rounds."""
    if not isinstance(trial.outcome, Measured) or trial.outcome.truncated:
        return False
    time_us = trial.outcome.time_us
    if not trial.candidate.plan_kind.is_ours:
        job.library_us = time_us if job.library_us is None else min(job.library_us, time_us)
        return False
    speedup = trial.outcome.speedup
    if job.best_speedup is not None and job.best_speedup >= speedup:
        return False
    job.best_us, job.best_speedup = time_us, speedup
    return True


def _summary(trial: Trial, job: JobRow) -> dict[str, Any]:
    schedule, outcome, so_far = trial.candidate.schedule, trial.outcome, to_record(job, is_bare=True)
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
        "best_speedup": job.best_speedup,
        "search_s": job.search_s,
        "eta_s": so_far.eta_s(trial.finished_at),
        "card_share": so_far.card_share,
        "since_progress": job.since_progress,
    }


def get(session: Session, job_id: str, number: int) -> Trial:
    """A trial; raises `NotFound` if there is no such job or trial."""
    job = row_of(session, job_id)
    row = session.get(TrialRow, (job_id, number))
    if row is None:
        num_trials = job.num_measured + job.num_rejected + job.num_failed
        there = f"its trials are 0 to {num_trials - 1}" if num_trials else "it has no trials yet"
        raise NotFound(f"{job_id} has no trial {number}: {there}; GET /jobs/{job_id}/trials lists them")
    return row_to_trial(row)


def history(session: Session, job_id: str) -> list[Trial]:
    """All trials of a job, by number."""
    query = select(TrialRow).where(TrialRow.job_id == job_id).order_by(TrialRow.number)
    return [row_to_trial(row) for row in session.scalars(query)]


def page(session: Session, job_id: str, chosen: TrialFilter, cursor: str | None, limit: int) -> Page[Trial]:
    """One page of a job's trials.

    Raises:
        NotFound: no such job.
        InvalidInput: the cursor belongs to another listing.
    """
    check_there(session, job_id)
    listing = f"trials of {job_id} {chosen.outcome} {chosen.plan_kind} {chosen.reason} by {chosen.sort}"
    position = None if cursor is None else decode_cursor(listing, cursor, (float, int))
    after = None if position is None else (position[0], position[1])
    places = find_places(session, job_id, chosen, after, limit + 1)
    more = encode_cursor(listing, list(places[limit - 1])) if len(places) > limit else None
    numbers = [number for _, number in places[:limit]]
    rows = session.scalars(select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.number.in_(numbers)))
    by_number = {row.number: row for row in rows}
    return Page(items=[row_to_trial(by_number[number]) for number in numbers], next_cursor=more)


def fastest(session: Session, job_id: str) -> dict[PlanKind, tuple[float, int]]:
    """The fastest measured trial of each of our plan kinds that has one: its time in microseconds, and its number.

    Raises:
        NotFound: no such job.
    """
    check_there(session, job_id)
    connection, found = session.connection(), {}
    for kind in PlanKind:
        row = connection.execute(_FASTEST, {"job_id": job_id, "kind": str(kind)}).first() if kind.is_ours else None
        if row is not None and row[0] is not None:
            found[kind] = (row[0], row[1])
    return found


def outcome_counts(session: Session, job_id: str) -> dict[str, int]:
    """Trials by outcome: measured, rejected, and each kind of failure that occurred."""
    job = row_of(session, job_id)
    kind = TrialRow.failure_kind
    query = select(kind, func.count()).where(TrialRow.job_id == job_id, TrialRow.outcome == "failed")
    failures = {str(name): count for name, count in session.execute(query.group_by(kind).order_by(kind))}
    return {"measured": job.num_measured, "rejected": job.num_rejected} | failures


def forecasts(session: Session, job_id: str) -> list[tuple[float, float]]:
    """(forecast in microseconds, measured time relative to the library's in its rounds) of fused trials with both, for
    the kind of launch, normal or programmatic, that has more of them: all trials, or `MAX_FORECASTS` evenly spaced
    ones."""
    job = row_of(session, job_id)
    num_trials = job.num_measured + job.num_rejected + job.num_failed
    numbers = range(0, num_trials, max(1, math.ceil(num_trials / MAX_FORECASTS)))
    fused = [str(kind) for kind in PlanKind if kind.is_fused]
    # Metrics of other kinds are not decoded. The filter is an expression, since an index of kinds would match most of
    # the job's trials.
    is_fused = func.coalesce(TrialRow.plan_kind, "").in_(fused)
    query = select(TrialRow.plan_kind, TrialRow.metrics, TrialRow.speedup).where(
        TrialRow.job_id == job_id, TrialRow.number.in_(numbers), is_fused
    )
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in fused}
    for kind, metrics, speedup in session.execute(query.order_by(TrialRow.number)):
        found[str(kind)] += [(value, 1 / speedup) for tag, _, value in metrics or () if tag == FORECAST and speedup]
    return max(found.values(), key=len)


def best_so_far(session: Session, job_id: str) -> list[tuple[int, float, float | None]]:
    """(trial number, its time, the library's fastest time so far), microseconds, of each trial with a higher speed-up
    than all earlier trials of generated kernels."""
    check_there(session, job_id)
    query = select(EventRow.data).where(EventRow.job_id == job_id, EventRow.kind == literal_column("'best'"))
    return [
        (data["number"], data["best_us"], data["library_us"]) for data in session.scalars(query.order_by(EventRow.id))
    ]
