"""Data for listing batches, besides their sums: workloads, gains, and the next job."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Integer, cast, func, select
from sqlalchemy.orm import Session

from tuner.core.trial.job import JobState
from tuner.core.trial.records import JobRecord
from tuner.store.jobs.jobs import IS_KEPT, OPEN_STATES, to_record
from tuner.store.tables.batch_models import BatchJobRow, BatchRow
from tuner.store.tables.models import JobRow


@dataclass(frozen=True, kw_only=True)
class BatchFacts:
    """The facts of one batch."""

    #: The first of its jobs.
    first: JobRecord
    #: The smallest and the largest number of rows; None if the first op has no rows.
    rows: tuple[int, int] | None
    #: The smallest and the largest gain over the library among its succeeded jobs; None if there are none.
    speedups: tuple[float, float] | None
    #: The job that is being searched or is next; None if no job is open, or all are paused.
    next_open: JobRecord | None


def facts(session: Session, batch_ids: Collection[str]) -> dict[str, BatchFacts]:
    """The facts of the batches that have jobs."""
    rows = cast(JobRow.spec["workload"]["ops"][0]["m"].as_string(), Integer)
    gain = JobRow.best_speedup
    has_succeeded = JobRow.state == str(JobState.SUCCEEDED)
    waits = JobRow.state.in_(OPEN_STATES) & JobRow.is_paused.is_(False)
    query = (
        select(
            BatchRow.id,
            func.min(JobRow.seq),
            func.min(rows),
            func.max(rows),
            func.min(gain).filter(has_succeeded),
            func.max(gain).filter(has_succeeded),
            func.min(JobRow.seq).filter(waits),
        )
        .join(BatchJobRow, BatchJobRow.batch_seq == BatchRow.seq)
        .join(JobRow, JobRow.seq == BatchJobRow.job_seq)
        .where(BatchRow.id.in_(batch_ids), IS_KEPT)
        .group_by(BatchRow.id)
    )
    found = session.execute(query).all()
    seqs = {seq for _, first, *_, waiting in found for seq in (first, waiting) if seq is not None}
    records = {row.seq: to_record(row) for row in session.scalars(select(JobRow).where(JobRow.seq.in_(seqs)))}
    return {
        batch_id: BatchFacts(
            first=records[first],
            rows=None if fewest is None else (fewest, most),
            speedups=None if lowest is None or highest is None else (lowest, highest),
            next_open=records.get(waiting),
        )
        for batch_id, first, fewest, most, lowest, highest, waiting in found
    }
