"""Results of jobs, found by job or by what was asked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session

from tuner.core.problem.objective import FinalsProcedure
from tuner.core.problem.workload import Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.records import Best, FinalRow, JobRecord, Verdict
from tuner.store.encoding import candidate_from_json, candidate_to_json
from tuner.store.jobs import row_of, to_record
from tuner.store.models import BestRow
from tuner.store.result_keys import closest_job, key_of


def insert(session: Session, best: Best) -> None:
    """Keeps the result of a job, and what it is found by; its artifact must be registered before."""
    job = row_of(session, best.job_id)
    session.add(key_of(job.seq, job.id, to_record(job).spec, best.environment))
    session.add(
        BestRow(
            job_id=best.job_id,
            verdict=str(best.verdict),
            winner=str(best.winner),
            artifact_digest=best.artifact_digest,
            tie_band=best.tie_band,
            reference_us=best.reference_us,
            finals=[asdict(row) | {"candidate": candidate_to_json(row.candidate)} for row in best.finals],
            environment=asdict(best.environment),
            procedure=asdict(best.procedure) if best.procedure else None,
        )
    )


def _final_row(data: dict[str, Any]) -> FinalRow:
    interval = data["speedup_ci95"]
    return FinalRow(
        **data
        | {
            "candidate": candidate_from_json(data["candidate"]),
            "speedup_ci95": interval and (interval[0], interval[1]),
        }
    )


def _to_best(row: BestRow) -> Best:
    return Best(
        job_id=row.job_id,
        verdict=Verdict(row.verdict),
        winner=PlanKind(row.winner),
        tie_band=row.tie_band,
        finals=tuple(_final_row(data) for data in row.finals),
        reference_us=row.reference_us,
        artifact_digest=row.artifact_digest,
        environment=Environment(**row.environment),
        procedure=FinalsProcedure(**row.procedure) if row.procedure else None,
    )


def find(session: Session, job_id: str) -> Best | None:
    """The result of a job, or None where it has none."""
    row = session.get(BestRow, job_id)
    return _to_best(row) if row else None


def closest(
    session: Session, workload: Workload, target_id: str, environment: Environment | None
) -> tuple[JobRecord, Best] | None:
    """The job and the result that fit best, never simulated for real; None where none is like what is asked.

    `environment` is what an exact fit was measured in; without it every environment is.
    """
    job_id = closest_job(session, workload, target_id, environment)
    best = None if job_id is None else find(session, job_id)
    return None if job_id is None or best is None else (to_record(row_of(session, job_id)), best)
