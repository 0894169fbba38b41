"""Jobs that are no longer kept: deleted by name, by age or by count, with all that is known of them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine, delete, select, text
from sqlalchemy.orm import Session

from tuner.core.trial.job import JobState
from tuner.errors import Conflict
from tuner.store.batch_models import BatchJobRow, BatchKernelRow, BatchLadderRow, BatchRow
from tuner.store.jobs import row_of
from tuner.store.models import (
    BestRow,
    EventRow,
    IdempotencyKeyRow,
    InspectionRow,
    JobLabelRow,
    JobOwnerRow,
    JobRow,
    ResultKeyRow,
    TrialRow,
)

_FINAL_STATES = tuple(str(state) for state in JobState if state.is_final)
#: What a job has, each before what it refers to.
_OF_A_JOB = (InspectionRow, ResultKeyRow, BestRow, IdempotencyKeyRow, EventRow, TrialRow)


def expired(session: Session, *, before: float | None, num_kept: int | None) -> list[str]:
    """Ids of ended jobs, the oldest first: those that ended `before`, and those beyond the newest `num_kept`."""
    ended = select(JobRow.id).where(JobRow.state.in_(_FINAL_STATES))
    found: set[str] = set()
    if before is not None:
        found |= set(session.scalars(ended.where(JobRow.finished_at < before)))
    if num_kept is not None:
        found |= set(session.scalars(ended.order_by(JobRow.seq.desc()).offset(num_kept)))
    return list(session.scalars(ended.where(JobRow.id.in_(found)).order_by(JobRow.seq)))


def delete_jobs(session: Session, job_ids: Collection[str]) -> int:
    """Deletes jobs that have ended, with trials, events, results and inspections; how many trials went with them.

    Raises:
        NotFound: there is no such job.
        Conflict: a job is open; cancel it first.
    """
    num_trials = 0
    for job_id in job_ids:
        row = row_of(session, job_id)
        if not JobState(row.state).is_final:
            raise Conflict(f"{job_id} is {row.state}; cancel it before it is deleted")
        num_trials += row.num_measured + row.num_rejected + row.num_failed
        for model in _OF_A_JOB:
            session.execute(delete(model).where(model.job_id == job_id))
        for kept_by_seq in (JobOwnerRow, JobLabelRow, BatchJobRow):
            session.execute(delete(kept_by_seq).where(kept_by_seq.job_seq == row.seq))
        session.execute(delete(JobRow).where(JobRow.id == job_id))
    _delete_empty_batches(session)
    return num_trials


def _delete_empty_batches(session: Session) -> None:
    """Deletes batches that have no job left, with their answers."""
    empty = list(session.scalars(select(BatchRow.seq).where(BatchRow.seq.not_in(select(BatchJobRow.batch_seq)))))
    for model in (BatchKernelRow, BatchLadderRow):
        session.execute(delete(model).where(model.batch_seq.in_(empty)))
    session.execute(delete(BatchRow).where(BatchRow.seq.in_(empty)))


def shrink(engine: Engine) -> None:
    """Gives the space of what was deleted back to the disk."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("vacuum"))
        return
    raw = engine.raw_connection()  # which begins no transaction
    try:
        for word in ("vacuum", "pragma wal_checkpoint(truncate)"):
            raw.cursor().execute(word)
    finally:
        raw.close()
