"""Quotas of owners and projects, and their usage."""

from __future__ import annotations

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from tuner.core.access.quota import WINDOW_S, Quota, QuotaScope, Usage
from tuner.core.trial.job import JobState
from tuner.errors import NotFound
from tuner.store.tables.access_models import QuotaRow
from tuner.store.tables.models import JobOwnerRow, JobRow

_OPEN_STATES = tuple(str(state) for state in JobState if not state.is_final)


def every(session: Session) -> list[Quota]:
    """All quotas, by scope and name."""
    return [
        Quota(
            scope=QuotaScope(row.scope),
            name=row.name,
            open_jobs=row.open_jobs,
            card_hours_per_day=row.card_hours_per_day,
        )
        for row in session.scalars(select(QuotaRow).order_by(QuotaRow.scope, QuotaRow.name))
    ]


def put(session: Session, quota: Quota) -> None:
    """Sets a quota, replacing an existing one."""
    session.merge(
        QuotaRow(
            scope=str(quota.scope),
            name=quota.name,
            open_jobs=quota.open_jobs,
            card_hours_per_day=quota.card_hours_per_day,
        )
    )


def drop(session: Session, scope: QuotaScope, name: str) -> None:
    """Removes a quota.

    Raises:
        NotFound: there is no such quota.
    """
    one = (QuotaRow.scope == str(scope), QuotaRow.name == name)
    if session.scalar(select(QuotaRow.name).where(*one)) is None:
        raise NotFound(f"there is no quota for the {scope} {name[:80]!r}; `tuner quota list` lists all quotas")
    session.execute(delete(QuotaRow).where(*one))


def usage(session: Session, scope: QuotaScope, name: str, now: float) -> Usage:
    """The usage of an owner or a project at `now`, seconds since the epoch."""
    own: list[ColumnElement[bool]] = [JobRow.deleted_at.is_(None)]
    if scope is QuotaScope.PROJECT:
        own.append(JobRow.project == name)
    else:
        own.append(JobRow.seq.in_(select(JobOwnerRow.job_seq).where(JobOwnerRow.owner == name)))
    open_jobs = session.scalar(select(func.count()).where(*own, JobRow.state.in_(_OPEN_STATES)))
    card_s = session.scalar(select(func.sum(JobRow.card_s)).where(*own, JobRow.created_at > now - WINDOW_S))
    return Usage(open_jobs=open_jobs or 0, card_s=card_s or 0.0)
