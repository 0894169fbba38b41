"""Which jobs have failed trials, and how they failed."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tuner.core.trial.records import JobRecord
from tuner.store.jobs.jobs import IS_KEPT, to_record
from tuner.store.tables.models import JobRow, TrialRow


@dataclass(frozen=True, kw_only=True)
class JobFailures:
    """The failures of one job."""

    job: JobRecord
    #: Failed trials by kind, most frequent first.
    kinds: dict[str, int]


def newest(session: Session, limit: int) -> list[JobFailures]:
    """The newest jobs with failures."""
    query = select(JobRow).where(IS_KEPT, JobRow.num_failed > 0).order_by(JobRow.seq.desc()).limit(limit)
    found = [to_record(row) for row in session.scalars(query)]
    counted = (
        select(TrialRow.job_id, TrialRow.failure_kind, func.count())
        .where(TrialRow.job_id.in_([job.id for job in found]), TrialRow.outcome == "failed")
        .group_by(TrialRow.job_id, TrialRow.failure_kind)
        .order_by(func.count().desc())
    )
    kinds: dict[str, dict[str, int]] = {job.id: {} for job in found}
    for job_id, kind, count in session.execute(counted):
        kinds[job_id][str(kind)] = int(count)
    return [JobFailures(job=job, kinds=kinds[job.id]) for job in found]
