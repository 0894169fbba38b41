"""Priors: those of a job with their results, and the results from which the next job may start."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.core.problem.workload import Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobSpec
from tuner.core.trial.priors import Found, Prior, PriorUse
from tuner.core.trial.questions import log_sizes
from tuner.store.jobs import events
from tuner.store.jobs.jobs import row_of
from tuner.store.results.shapes import ShapeIndex
from tuner.store.tables.encoding import candidate_from_json, candidate_to_json, row_to_trial
from tuner.store.tables.models import BestRow, JobRow, TrialRow

#: Maximum number of results considered: those with the nearest sizes.
MAX_RESULTS = 64


def chosen(session: Session, job_id: str) -> tuple[Prior, ...] | None:
    """A job's priors; None if they have not been chosen yet."""
    data = row_of(session, job_id).priors
    return None if data is None else tuple(_from_json(one) for one in data)


def choose(session: Session, job_id: str, priors: tuple[Prior, ...], now: float) -> None:
    """Stores a job's priors, and adds an event if there are any."""
    row_of(session, job_id).priors = [_to_json(prior) for prior in priors]
    if not priors:
        return
    summaries = [
        {
            "plan_kind": str(prior.candidate.plan_kind),
            "schedule": str(prior.candidate.schedule),
            "source": prior.source,
            "workload": prior.workload,
            "is_adapted": prior.is_adapted,
        }
        for prior in priors
    ]
    events.append(session, job_id, "priors", now, {"priors": summaries})


def uses(session: Session, job_id: str) -> list[PriorUse]:
    """A job's priors in order, each with its result; empty if they have not been chosen yet."""
    priors = chosen(session, job_id) or ()
    query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.prior.is_not(None))
    tried = {row.prior: row_to_trial(row) for row in session.scalars(query)} if priors else {}
    return [
        PriorUse(prior=prior, trial_number=trial.number, outcome=trial.outcome)
        if (trial := tried.get(index))
        else PriorUse(prior=prior)
        for index, prior in enumerate(priors)
    ]


def known(session: Session, workload: Workload, target_id: str, shapes: ShapeIndex) -> list[Found]:
    """Results of finals on exactly that target, for workloads of similar sizes."""
    near = shapes.near(session, target_id, log_sizes(workload), MAX_RESULTS)
    query = select(JobRow.seq, JobRow.id, JobRow.spec, BestRow.finals, BestRow.environment)
    rows = session.execute(query.join(BestRow, BestRow.job_id == JobRow.id).where(JobRow.seq.in_(near))).all()
    found: list[Found] = []
    for _, job_id, spec_json, finals, environment in sorted(rows, key=lambda row: near.index(row[0])):
        spec = JobSpec.from_json(spec_json)
        if not spec.workload.unknown_kinds:
            found += _found(job_id, spec, finals, environment["kernel_version"])
    return found


def _found(job_id: str, spec: JobSpec, finals: list[dict[str, Any]], kernel_version: str) -> list[Found]:
    return [
        Found(
            workload=spec.workload,
            objective=spec.objective,
            candidate=candidate_from_json(row["candidate"]),
            time_us=row["time_us"],
            speedup=row["speedup"],
            source=job_id,
            kernel_version=kernel_version,
        )
        for row in finals
        if row["time_us"] is not None and PlanKind(row["candidate"]["plan_kind"]).is_ours
    ]


def _to_json(prior: Prior) -> dict[str, Any]:
    return asdict(prior) | {"candidate": candidate_to_json(prior.candidate)}


def _from_json(data: dict[str, Any]) -> Prior:
    return Prior(**data | {"candidate": candidate_from_json(data["candidate"])})
