"""Finds the numbers of the trials on a page, only through indexes, however many trials the job has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.outcome import FailureKind
from tuner.store.tables.models import TrialRow

SortKey = Literal["number", "time", "speedup"]
#: A trial's sort value, and its number.
Place = tuple[float, int]

#: A sort value above every time, in microseconds (three million years): trials without a time come last.
LAST = 1e20


@dataclass(frozen=True, kw_only=True)
class TrialFilter:
    """Which trials of a job, and in which order."""

    #: measured, rejected or failed.
    outcome: str | None = None
    plan_kind: PlanKind | None = None
    #: Kind of failure.
    reason: FailureKind | None = None
    #: The order: by number, by shortest time, or by largest speed-up.
    sort: SortKey = "number"

    @property
    def outcomes(self) -> frozenset[str]:
        """Outcomes that match this filter: only failures have a reason."""
        every = frozenset({"measured", "rejected", "failed"})
        asked = every if self.outcome is None else frozenset({self.outcome})
        return asked if self.reason is None else asked & {"failed"}


def find_places(session: Session, job_id: str, chosen: TrialFilter, after: Place | None, count: int) -> list[Place]:
    """The first `count` positions after `after`, in order."""
    if not chosen.outcomes:
        return []
    if chosen.sort == "number":
        return _by_number(session, job_id, chosen, chosen.outcomes, after, count)
    # Only measured trials have a time. They come first, from an index of times; the others follow by number.
    found: list[Place] = []
    if "measured" in chosen.outcomes and (after is None or after[0] < LAST):
        found = _by_figure(session, job_id, chosen, after, count)
    without = chosen.outcomes - {"measured"}
    if without and len(found) < count:
        last = None if after is None or after[0] < LAST else after
        rest = _by_number(session, job_id, chosen, without, last, count - len(found))
        found += [(LAST, number) for _, number in rest]
    return found


def _by_number(
    session: Session, job_id: str, chosen: TrialFilter, outcomes: frozenset[str], after: Place | None, count: int
) -> list[Place]:
    # Reads each outcome in index order and merges them, without sorting all trials.
    wanted = _of(chosen, TrialRow.failure_kind) if chosen.reason else []
    found: list[int] = []
    for outcome in sorted(outcomes) if len(outcomes) < 3 else (None,):
        query = select(TrialRow.number).where(TrialRow.job_id == job_id, *wanted, *_of(chosen, TrialRow.plan_kind))
        if outcome is not None:
            query = query.where(TrialRow.outcome == outcome)
        if after is not None:
            query = query.where(TrialRow.number > after[1])
        found += session.scalars(query.order_by(TrialRow.number).limit(count))
    return [(float(number), number) for number in sorted(found)[:count]]


def _by_figure(session: Session, job_id: str, chosen: TrialFilter, after: Place | None, count: int) -> list[Place]:
    is_time = chosen.sort == "time"
    column, sign = (TrialRow.time_us, 1.0) if is_time else (TrialRow.speedup, -1.0)
    query = select(column, TrialRow.number).where(
        TrialRow.job_id == job_id, column.is_not(None), *_of(chosen, TrialRow.plan_kind)
    )
    if after is not None:
        value = sign * after[0]
        query = query.where(column >= value if is_time else column <= value)
        query = query.where(or_(column != value, TrialRow.number > after[1]))
    query = query.order_by(column if is_time else column.desc(), TrialRow.number).limit(count)
    return [(sign * value, number) for value, number in session.execute(query) if value is not None]


def _of(chosen: TrialFilter, column: InstrumentedAttribute[Any]) -> list[ColumnElement[bool]]:
    """The filter's condition on a column, if it has one."""
    wanted = chosen.plan_kind if column is TrialRow.plan_kind else chosen.reason
    return [] if wanted is None else [column == str(wanted)]
