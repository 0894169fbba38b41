"""Jobs: what was asked, and where it stands."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.core.trial.job import JobSpec, JobState, check_transition
from tuner.core.trial.records import JobRecord, Page
from tuner.errors import NotFound
from tuner.store import events
from tuner.store.cursors import decode_cursor, encode_cursor
from tuner.store.models import JobRow

_OPEN_STATES = tuple(str(state) for state in JobState if not state.is_final)


def to_record(row: JobRow) -> JobRecord:
    """The domain's view of a row."""
    return JobRecord(
        id=row.id,
        spec=JobSpec.from_json(row.spec),
        state=JobState(row.state),
        reason=row.reason,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        num_measured=row.num_measured,
        num_rejected=row.num_rejected,
        num_failed=row.num_failed,
        best_us=row.best_us,
        library_us=row.library_us,
        search_s=row.search_s,
        card_s=row.card_s,
        since_progress=row.since_progress,
    )


def row_of(session: Session, job_id: str) -> JobRow:
    """Raises:
    NotFound: no such job.
    """
    row = session.scalar(select(JobRow).where(JobRow.id == job_id))
    if row is None:
        raise NotFound(f"there is no job {job_id[:80]!r}; GET /jobs lists those there are")
    return row


def insert(session: Session, spec: JobSpec, now: float) -> JobRecord:
    """A new job, queued."""
    row = JobRow(
        id=f"job-{secrets.token_hex(6)}",
        spec=spec.to_json(),
        problem_digest=spec.problem_digest,
        target_id=spec.target_id,
        state=str(JobState.QUEUED),
        created_at=now,
        card_s=0.0,
    )
    session.add(row)
    session.flush()
    events.append(session, row.id, "state", now, {"state": row.state, "reason": ""})
    return to_record(row)


def get(session: Session, job_id: str) -> JobRecord:
    """Raises:
    NotFound: no such job.
    """
    return to_record(row_of(session, job_id))


def find_open(session: Session, problem_digest: str) -> JobRecord | None:
    """The job that works, or will work, on that problem."""
    query = select(JobRow).where(JobRow.problem_digest == problem_digest, JobRow.state.in_(_OPEN_STATES))
    row = session.scalar(query)
    return to_record(row) if row else None


def find_succeeded(session: Session, problem_digest: str) -> JobRecord | None:
    """The newest job that solved that problem."""
    query = select(JobRow).where(JobRow.problem_digest == problem_digest, JobRow.state == str(JobState.SUCCEEDED))
    row = session.scalar(query.order_by(JobRow.seq.desc()).limit(1))
    return to_record(row) if row else None


def next_open(session: Session, target_id: str, besides: Collection[str] = ()) -> JobRecord | None:
    """The job that a runner of a target should take: one that was begun, else the oldest queued; none of `besides`."""
    query = select(JobRow).where(
        JobRow.target_id == target_id, JobRow.state.in_(_OPEN_STATES), JobRow.id.not_in(besides)
    )
    row = session.scalar(query.order_by(JobRow.state == str(JobState.QUEUED), JobRow.seq).limit(1))
    return to_record(row) if row else None


def page(session: Session, cursor: str | None, limit: int, state: JobState | None) -> Page[JobRecord]:
    """Jobs, newest first."""
    listing = f"jobs {state or 'any'}"
    query = select(JobRow).order_by(JobRow.seq.desc()).limit(limit + 1)
    if state is not None:
        query = query.where(JobRow.state == str(state))
    if cursor is not None:
        query = query.where(JobRow.seq < decode_cursor(listing, cursor, (int,))[0])
    rows = session.scalars(query).all()
    more = encode_cursor(listing, [rows[limit - 1].seq]) if len(rows) > limit else None
    return Page(items=[to_record(row) for row in rows[:limit]], next_cursor=more)


def set_state(session: Session, job_id: str, state: JobState, now: float, reason: str = "") -> JobRecord:
    """Takes a job one step on, and tells it.

    Raises:
        NotFound: no such job.
        Conflict: the step is illegal.
    """
    row = row_of(session, job_id)
    check_transition(JobState(row.state), state)
    row.state, row.reason = str(state), reason
    if row.started_at is None and state is JobState.SEARCHING:
        row.started_at = now
    if state.is_final:
        row.finished_at = now
    events.append(session, job_id, "state", now, {"state": str(state), "reason": reason})
    return to_record(row)
