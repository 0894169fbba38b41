"""Measured trials of a target over all jobs, to which the simulator is fitted."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.core.problem.objective import CacheState
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.job import JobSpec
from tuner.store.jobs.jobs import IS_KEPT
from tuner.store.tables.encoding import candidate_from_json
from tuner.store.tables.models import JobRow, TrialRow


def measured_candidates(session: Session, target_id: str) -> Iterator[tuple[Workload, list[tuple[Candidate, float]]]]:
    """For each workload of products that was timed cold on a target: our candidates with their times, microseconds. A
    time is the candidate's median ratio to the library over its rounds, times the library's median time over the job.
    If several jobs measured a candidate, the last job counts."""
    found = dict[Workload, dict[Candidate, float]]()
    is_meant = (IS_KEPT, JobRow.target_id == target_id, JobRow.num_measured > 0, JobRow.op_kinds == "")
    for job_id, data in session.execute(select(JobRow.id, JobRow.spec).where(*is_meant).order_by(JobRow.seq)).all():
        spec = JobSpec.from_json(data)
        if spec.objective.l2 is not CacheState.COLD:
            continue
        query = select(TrialRow.plan_kind, TrialRow.schedule, TrialRow.speedup, TrialRow.library_us)
        of_job = (TrialRow.job_id == job_id, TrialRow.speedup > 0, TrialRow.library_us.is_not(None))
        rows = session.execute(query.where(*of_job).order_by(TrialRow.number)).all()
        if not rows:
            continue
        library_us = median(row.library_us for row in rows)
        times = found.setdefault(spec.workload, {})
        for kind, schedule, speedup, _ in rows:
            candidate = candidate_from_json({"plan_kind": kind, "schedule": schedule})
            if candidate.plan_kind.is_ours:
                times[candidate] = library_us / speedup
    for workload, times in found.items():
        yield workload, list(times.items())
