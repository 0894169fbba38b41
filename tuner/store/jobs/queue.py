"""The order of jobs: highest priority, then the owner with the least GPU use, then the oldest job."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, select, update
from sqlalchemy.orm import Session, aliased

from tuner.core.trial.job import JobState
from tuner.core.trial.ladders.batch import FINALS_S
from tuner.core.trial.records import JobRecord
from tuner.store.jobs.batches import must_wait
from tuner.store.jobs.jobs import OPEN_STATES, row_of, to_record
from tuner.store.tables.models import JobOwnerRow, JobRow

#: An owner's GPU use is counted over this period, seconds.
SHARE_WINDOW_S = 3600.0
#: Number of finished jobs from which the pace of waiting jobs is estimated.
_NUM_PACE_JOBS = 20
#: Maximum number of jobs that are added up for an ETA.
_MAX_AHEAD = 1000

_owner_column: ColumnElement[str] = func.coalesce(JobOwnerRow.owner, "")

# Built once: building the statement takes longer than executing it, and a search queries after every trial.

#: The conditions for a job that a runner may take.
_WAITS = (
    JobRow.target_id == bindparam("target_id"),
    JobRow.state.in_(OPEN_STATES),
    JobRow.id.not_in(bindparam("besides", expanding=True)),
    JobRow.is_paused.is_(False),
    ~must_wait(),
)
#: The conditions above, for a runner that has everything that the job needs.
_CAN = (*_WAITS, JobRow.op_kinds.not_in(bindparam("lacking", expanding=True)))
#: What the open jobs of a target need beyond the basic runner.
_NEEDED = (
    select(JobRow.op_kinds)
    .where(JobRow.target_id == bindparam("target_id"), JobRow.state.in_(OPEN_STATES), JobRow.op_kinds != "")
    .distinct()
)
_IS_QUEUED = JobRow.state == str(JobState.QUEUED)
_OVERDUE = (
    select(JobRow).where(*_WAITS, _IS_QUEUED, JobRow.deadline_at <= bindparam("now")).order_by(JobRow.seq).limit(1)
)
_TOP = select(func.max(JobRow.priority)).where(*_CAN)
_OF_TOP = (
    select(JobRow)
    .outerjoin(JobOwnerRow, JobOwnerRow.job_seq == JobRow.seq)
    .where(*_CAN, JobRow.priority == bindparam("top"))
)
_FIRST_OF_EACH = _OF_TOP.with_only_columns(_owner_column, func.min(JobRow.seq)).group_by(_owner_column)
#: The owner's first job; a started job comes before a queued one.
_FIRST = _OF_TOP.where(_owner_column == bindparam("owner")).order_by(_IS_QUEUED, JobRow.seq).limit(1)
#: Queries a job's current priority, which another request may have raised.
_OWN = aliased(JobRow)
_PRIORITY = select(_OWN.priority).where(_OWN.id == bindparam("job_id")).scalar_subquery()
_OUTRANKING = select(JobRow.seq).where(*_CAN, JobRow.priority > _PRIORITY).limit(1)


def next_open(
    session: Session,
    target_id: str,
    now: float,
    besides: Collection[str] = (),
    kinds: Collection[str] | None = None,
) -> JobRecord | None:
    """The job that a runner of a target should take, excluding `besides`, with only ops of `kinds`, if given.

    Jobs that wait for others of their ladder are excluded. A queued job whose deadline has passed comes first, so that
    it ends. Otherwise the highest priority counts, then the owner with the least GPU use in the last hour; among that
    owner's jobs, a started one, otherwise the oldest.
    """
    lacking = _lacking(session, target_id, kinds)
    asked = {"target_id": target_id, "besides": list(besides), "lacking": lacking}
    overdue = session.scalar(_OVERDUE, {**asked, "now": now})
    if overdue is not None:
        return to_record(overdue)
    top = session.scalar(_TOP, asked)
    if top is None:
        return None
    firsts = session.execute(_FIRST_OF_EACH, {**asked, "top": top}).all()
    used_s = _used_s(session, target_id, now) if len(firsts) > 1 else {}
    owner = min(firsts, key=lambda one: (used_s.get(one[0], 0.0), one[1]))[0]
    return to_record(session.scalars(_FIRST, {**asked, "top": top, "owner": owner}).one())


def _lacking(session: Session, target_id: str, kinds: Collection[str] | None) -> list[str]:
    """What jobs need and a runner that supports `kinds` lacks."""
    if kinds is None:
        return []
    needed = session.scalars(_NEEDED, {"target_id": target_id})
    return [names for names in needed if not set(names.split()) <= set(kinds)]


def move_deadlines(session: Session, step_s: float) -> None:
    """Shifts the deadlines of all open jobs by `step_s`, after a step of the clock."""
    is_due = JobRow.state.in_(OPEN_STATES) & JobRow.deadline_at.is_not(None)
    session.execute(update(JobRow).where(is_due).values(deadline_at=JobRow.deadline_at + step_s))


def is_outranked(
    session: Session, job: JobRecord, besides: Collection[str], kinds: Collection[str] | None = None
) -> bool:
    """Whether a waiting job has a higher priority than `job` has now, excluding `besides`, under the conditions of
    `next_open`. This query is much cheaper than `next_open`."""
    lacking = _lacking(session, job.spec.target_id, kinds)
    asked = {"target_id": job.spec.target_id, "besides": list(besides), "job_id": job.id, "lacking": lacking}
    return session.scalar(_OUTRANKING, asked) is not None


def _used_s(session: Session, target_id: str, now: float) -> dict[str, float]:
    """Seconds of search by owner, over jobs that are open or ended in the last hour; a shared job counts for each
    owner."""
    query = (
        select(_owner_column, func.sum(JobRow.search_s))
        .select_from(JobRow)
        .outerjoin(JobOwnerRow, JobOwnerRow.job_seq == JobRow.seq)
        .where(JobRow.target_id == target_id, JobRow.search_s > 0)
        .where(JobRow.finished_at.is_(None) | (JobRow.finished_at > now - SHARE_WINDOW_S))
        .group_by(_owner_column)
    )
    return {row[0]: row[1] for row in session.execute(query)}


Place = tuple[int | None, float | None]


def place(session: Session, job_id: str, num_cards: Callable[[str], int], now: float) -> Place:
    """The position of one job, in the same form as in `places`."""
    return places(session, [to_record(row_of(session, job_id), is_bare=True)], num_cards, now)[job_id]


def places(
    session: Session, asked: Collection[JobRecord], num_cards: Callable[[str], int], now: float
) -> dict[str, Place]:
    """For each open job: the number of jobs of its target ahead of it, by priority and age, and its estimated seconds
    until the end, from budgets, deadlines and the durations of ended jobs. None if the job is not in the queue or
    nothing is known. `num_cards` returns the number of a target's cards that can run jobs. Each queue is read only
    once."""
    found: dict[str, Place] = {job.id: (None, None) for job in asked}
    for target_id in {job.spec.target_id for job in asked if not job.state.is_final}:
        in_line = _line(session, target_id, _pace(session, target_id), num_cards(target_id), now)
        found |= {job_id: one for job_id, one in in_line if job_id in found}
    return found


#: Reads only the columns needed for a waiting job, since creating records would take as long as a whole page may.
_IN_LINE = (
    select(
        JobRow.id,
        JobRow.state,
        JobRow.search_s,
        (JobRow.num_measured + JobRow.num_rejected + JobRow.num_failed).label("num_trials"),
        JobRow.deadline_at,
        JobRow.spec["budget"]["seconds"].as_float().label("seconds"),
        JobRow.spec["budget"]["trials"].as_integer().label("trials"),
    )
    .where(JobRow.target_id == bindparam("target_id"), JobRow.state.in_(OPEN_STATES), JobRow.is_paused.is_(False))
    .order_by(JobRow.priority.desc(), JobRow.seq)
)


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """How long jobs take."""

    #: Seconds of search per trial.
    trial_s: float
    finals_s: float

    def search_s(self, job: Any, due_s: float) -> float:
        """Remaining seconds of a search, for a row of `_IN_LINE`: until the first of its budgets is spent, or its
        deadline passes."""
        if job.state == str(JobState.FINALS):
            return 0.0
        has_own = job.state == str(JobState.SEARCHING) and job.num_trials  # the same pace as on the job's page
        trial_s = job.search_s / job.num_trials if has_own else self.trial_s
        search_s: float = min(job.seconds - job.search_s, (job.trials - job.num_trials) * trial_s)
        return min(max(0.0, search_s), due_s)


def _line(session: Session, target_id: str, pace: _Pace | None, cards: int, now: float) -> Iterator[tuple[str, Place]]:
    """The positions of all jobs that are open and not paused, in order."""
    before_s = 0.0
    for position, job in enumerate(session.execute(_IN_LINE, {"target_id": target_id})):
        is_queued = job.state == str(JobState.QUEUED)
        place = position if is_queued else 0
        if pace is None or not cards or place > _MAX_AHEAD:
            yield job.id, (place, None)
            continue
        due_s = math.inf if job.deadline_at is None else max(0.0, job.deadline_at - now)
        search_s = pace.search_s(job, due_s)
        begins_s = before_s / cards if is_queued else 0.0
        fails = is_queued and begins_s >= due_s
        yield job.id, (place, due_s if fails else min(begins_s + search_s, due_s) + pace.finals_s)
        before_s += search_s + pace.finals_s


def _pace(session: Session, target_id: str) -> _Pace | None:
    """The pace of the most recent successful jobs; None if there are none."""
    query = select(JobRow).where(JobRow.target_id == target_id, JobRow.state == str(JobState.SUCCEEDED))
    rows = session.scalars(query.order_by(JobRow.seq.desc()).limit(_NUM_PACE_JOBS)).all()
    num_trials = sum(to_record(row).num_trials for row in rows)
    if not num_trials:
        return None
    finals = [row.finals_s for row in rows if row.finals_s is not None]
    finals_s = sum(finals) / len(finals) if finals else FINALS_S
    return _Pace(trial_s=sum(row.search_s for row in rows) / num_trials, finals_s=finals_s)
