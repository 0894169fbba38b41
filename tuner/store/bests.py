"""Results of jobs, found by job or by what was asked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.records import Best, FinalRow, JobRecord, PolicyTime, Verdict
from tuner.store.encoding import candidate_from_json, candidate_to_json
from tuner.store.jobs import to_record
from tuner.store.models import BestRow, JobRow


def insert(session: Session, best: Best) -> None:
    """Keeps the result of a job; its artifact must be registered before."""
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
            policies=[asdict(one) for one in best.policies],
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
        policies=tuple(PolicyTime(**one) for one in row.policies or ()),
    )


def find(session: Session, job_id: str) -> Best | None:
    """The result of a job, or None where it has none."""
    row = session.get(BestRow, job_id)
    return _to_best(row) if row else None


def all_results(session: Session) -> list[tuple[JobRecord, Best]]:
    """Every job with a result, newest first."""
    query = select(JobRow, BestRow).join(BestRow, BestRow.job_id == JobRow.id).order_by(JobRow.seq.desc())
    return [(to_record(job), _to_best(best)) for job, best in session.execute(query)]
