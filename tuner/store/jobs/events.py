"""Events of a job, in the order in which they happened."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from tuner.core.trial.records import Event
from tuner.store.engine import commits, gathering
from tuner.store.tables.models import EventRow, table_of

#: Inserts through the table, since the session's row is not needed afterwards.
_INSERT = insert(table_of(EventRow))


def append(session: Session, job_id: str, kind: str, at: float, data: dict[str, Any]) -> None:
    """Adds an event, in the transaction of its change."""
    commits.note_event(session, job_id)
    gathering.add(session, _INSERT, {"job_id": job_id, "kind": kind, "at": at, "data": data})


def after(session: Session, job_id: str, after_id: int, limit: int) -> list[Event]:
    """At most `limit` events of a job whose id is above `after_id`, oldest first."""
    query = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > after_id).order_by(EventRow.id).limit(limit)
    return [
        Event(id=row.id, job_id=row.job_id, kind=row.kind, at=row.at, data=row.data) for row in session.scalars(query)
    ]
