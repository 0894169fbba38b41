"""The trials of a job as points of a chart: a few columns, for all trials or an evenly spaced selection."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from sqlalchemy import literal_column, or_, select
from sqlalchemy.orm import Session

from tuner.core.schedule.candidate import Candidate
from tuner.store.jobs.jobs import row_of
from tuner.store.tables.encoding import candidate_from_json
from tuner.store.tables.models import EventRow, JobRow, TrialRow

#: Charts of jobs with more trials show an evenly spaced selection, which always includes the trials that were the best
#: so far.
MAX_POINTS = 4_000


@dataclass(frozen=True, kw_only=True)
class TrialPoint:
    """A trial's data for a chart."""

    number: int
    plan_kind: str
    #: measured, rejected or failed.
    outcome: str
    #: Kind of failure; None for other outcomes.
    failure_kind: str | None
    #: Microseconds, and the library's time divided by it; None if it was not measured.
    time_us: float | None
    speedup: float | None
    #: When its outcome arrived, seconds since the epoch.
    finished_at: float


@dataclass(frozen=True, kw_only=True)
class TrialPoints:
    """The points of a job."""

    #: Number of recorded trials; larger than the number of points if there is a selection.
    num_trials: int
    points: tuple[TrialPoint, ...]
    #: Seconds by stage, summed over all trials; scaled up if there is a selection.
    stage_s: dict[str, float]


def points(session: Session, job_id: str) -> TrialPoints:
    """At most about `MAX_POINTS` points, by number.

    Raises:
        NotFound: no such job.
    """
    num_trials = num_recorded(row_of(session, job_id))
    step = max(1, math.ceil(num_trials / MAX_POINTS))
    row, is_chosen = TrialRow, TrialRow.number % step == 0
    if step > 1:
        bests = select(EventRow.data).where(EventRow.job_id == job_id, EventRow.kind == literal_column("'best'"))
        is_chosen = or_(is_chosen, row.number.in_([data["number"] for data in session.scalars(bests)]))
    columns = (row.number, row.plan_kind, row.outcome, row.failure_kind, row.time_us, row.speedup, row.finished_at)
    query = select(*columns, row.stage_s).where(row.job_id == job_id, is_chosen).order_by(row.number)
    found, stage_s = [], Counter[str]()
    for *values, stages in session.execute(query):
        stage_s.update(stages or {})
        number, plan_kind, outcome, failure_kind, time_us, speedup, finished_at = values
        point = TrialPoint(
            number=number, plan_kind=plan_kind, outcome=outcome, failure_kind=failure_kind, time_us=time_us,
            speedup=speedup, finished_at=finished_at,
        )  # fmt: skip
        found.append(point)
    of_all = num_trials / len(found) if step > 1 else 1.0
    in_all = {stage: of_all * seconds for stage, seconds in stage_s.items()}
    return TrialPoints(num_trials=num_trials, points=tuple(found), stage_s=in_all)


def num_recorded(job: JobRow) -> int:
    """The number of a job's recorded trials."""
    return job.num_measured + job.num_rejected + job.num_failed


def measured_candidates(session: Session, job_id: str, limit: int) -> list[tuple[int, Candidate, float]]:
    """(number, candidate, speed-up) of measured trials of generated kernels: all, or `limit` evenly spaced ones.

    Raises:
        NotFound: no such job.
    """
    row_of(session, job_id)
    row = TrialRow
    ours = (row.job_id == job_id, row.outcome == "measured", row.plan_kind != "library")
    numbers = list(session.scalars(select(row.number).where(*ours).order_by(row.number)))
    chosen = numbers if len(numbers) <= limit else [numbers[i * len(numbers) // limit] for i in range(limit)]
    query = select(row.number, row.plan_kind, row.schedule, row.speedup).where(
        row.job_id == job_id, row.number.in_(chosen)
    )
    return [
        (number, candidate_from_json({"plan_kind": plan_kind, "schedule": schedule}), speedup)
        for number, plan_kind, schedule, speedup in session.execute(query.order_by(row.number))
        if speedup
    ]
