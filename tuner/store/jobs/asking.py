"""Who requested a job: individual requests, and batches."""

from __future__ import annotations

from sqlalchemy import BindParameter, String, bindparam, delete, exists, select
from sqlalchemy import insert as sql_insert
from sqlalchemy.orm import Session

from tuner.core.trial.ladders.batch import BatchRecord
from tuner.core.trial.records import JobRecord
from tuner.store.engine import gathering
from tuner.store.jobs.jobs import row_of
from tuner.store.tables.batch_models import BatchJobRow, BatchRow, SingleRequestRow
from tuner.store.tables.models import JobRow, table_of

_OWNER: BindParameter[str] = bindparam("owner", type_=String(64))
_IS_KNOWN = exists().where(SingleRequestRow.job_seq == JobRow.seq, SingleRequestRow.owner == _OWNER)
#: Inserts from a select, since the database assigns the job's number, and repeated requests are stored once.
_NOTE = sql_insert(table_of(SingleRequestRow)).from_select(
    ["job_seq", "owner"], select(JobRow.seq, _OWNER).where(JobRow.id == bindparam("job_id"), ~_IS_KNOWN)
)


def note_single(session: Session, job_id: str, owner: str) -> None:
    """Records an individual request for a job; `owner` is empty if the service has no tokens."""
    gathering.add(session, _NOTE, {"job_id": job_id, "owner": owner})


def drop_single(session: Session, job_id: str, owner: str) -> None:
    """Removes the owner's request.

    Raises:
        NotFound: no such job.
    """
    of_job = SingleRequestRow.job_seq == row_of(session, job_id).seq
    session.execute(delete(SingleRequestRow).where(of_job, SingleRequestRow.owner == owner))


def who_else(session: Session, job: JobRecord, batch: BatchRecord) -> set[str]:
    """Who needs a job besides a batch: its other owners, and whoever requested it individually, or in another batch
    that was not cancelled. An owner is empty if the service had no tokens at the time of the request.

    Raises:
        NotFound: no such job.
    """
    seq = row_of(session, job.id).seq
    alone = select(SingleRequestRow.owner).where(SingleRequestRow.job_seq == seq)
    by_batches = (
        select(BatchRow.owner)
        .join(BatchJobRow, BatchJobRow.batch_seq == BatchRow.seq)
        .where(BatchJobRow.job_seq == seq, BatchRow.id != batch.id, BatchRow.cancelled_at.is_(None))
    )
    asked = {*session.scalars(alone), *session.scalars(by_batches)}
    # Of an open job, an owner may have let go. One that has ended may be reused by an owner who never had it.
    needing = asked if job.state.is_final else {owner for owner in asked if not owner or owner in job.owners}
    return needing | {*job.owners} - {batch.owner}
