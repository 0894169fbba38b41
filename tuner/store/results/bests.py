"""Results of jobs, found by job or by request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.questions import Question
from tuner.core.trial.records import Best, FinalRow, JobRecord, PolicyTime, Verdict, kernel_row
from tuner.core.trial.reports.baselines import BaselineTime
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.core.trial.reports.torch_time import TorchCalls, TorchTime
from tuner.store.jobs.jobs import row_of, to_record
from tuner.store.results.result_keys import closest_job, key_of
from tuner.store.results.shapes import ShapeIndex
from tuner.store.tables.encoding import candidate_from_json, candidate_to_json
from tuner.store.tables.models import BestRow, JobRow


def insert(session: Session, best: Best) -> None:
    """Stores a job's result with its search keys; the result's artifact must already be registered."""
    job = row_of(session, best.job_id)
    _show_finals(job, best)
    session.add(key_of(job.seq, job.id, to_record(job).spec, best))
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
            library=best.library.to_json() if best.library else None,
            torch=asdict(best.torch) if best.torch else None,
            baselines=[asdict(one) for one in best.baselines] or None,
        )
    )


def _show_finals(job: JobRow, best: Best) -> None:
    """Replaces the job's figures from the search with those of the finals, so that the job has the same time and
    speed-up everywhere."""
    timed = [(row.time_us, row) for row in best.finals if row.time_us is not None]
    ours = kernel_row(best.finals, best.winner, None)
    library = [time_us for time_us, row in timed if not row.candidate.plan_kind.is_ours]
    if ours is not None:
        job.best_us, job.best_speedup = ours.time_us, ours.speedup
    job.library_us = min(library, default=job.library_us)


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
        library=LibraryRecipe.from_json(row.library) if row.library else None,
        torch=TorchTime(**row.torch | {"calls": TorchCalls(row.torch.get("calls", TorchCalls.EAGER))})
        if row.torch
        else None,
        baselines=tuple(map(_baseline_time, row.baselines or ())),
    )


def _baseline_time(data: dict[str, Any]) -> BaselineTime:
    interval = data["speedup_ci95"]
    return BaselineTime(**data | {"speedup_ci95": interval and (interval[0], interval[1])})


def find(session: Session, job_id: str) -> Best | None:
    """The result of a job, or None if it has none."""
    row = session.get(BestRow, job_id)
    return _to_best(row) if row else None


def put_baselines(session: Session, job_id: str, times: Collection[BaselineTime]) -> None:
    """Stores the times of a user's own programs with a job's result, if the result still exists."""
    row = session.get(BestRow, job_id)
    if row is not None:
        row.baselines = [asdict(one) for one in times]


def put_energy(session: Session, job_id: str, trial_number: int, energy_mj: float | None) -> None:
    """Stores the energy per run of a trial in the finals of its job."""
    row = session.get(BestRow, job_id)
    if row is not None:
        row.finals = [
            final | {"energy_mj": energy_mj} if final["trial_number"] == trial_number else final for final in row.finals
        ]


def of_jobs(session: Session, job_ids: Collection[str]) -> dict[str, Best]:
    """The results of the jobs that have one, by job."""
    rows = session.scalars(select(BestRow).where(BestRow.job_id.in_(job_ids)))
    return {row.job_id: _to_best(row) for row in rows}


def verdicts(session: Session, job_ids: Collection[str]) -> dict[str, tuple[Verdict, PlanKind]]:
    """The verdict and the winning kind of each result, by job; the schedules of its finals are not read."""
    query = select(BestRow.job_id, BestRow.verdict, BestRow.winner).where(BestRow.job_id.in_(job_ids))
    return {job_id: (Verdict(verdict), PlanKind(winner)) for job_id, verdict, winner in session.execute(query)}


def closest(session: Session, question: Question, shapes: ShapeIndex) -> tuple[JobRecord, Best] | None:
    """The job and the result that fit best; None if there is nothing similar. Simulated results are only returned for
    simulated targets.
    """
    job_id = closest_job(session, question, shapes)
    best = None if job_id is None else find(session, job_id)
    return None if job_id is None or best is None else (to_record(row_of(session, job_id)), best)
