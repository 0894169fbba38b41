"""The audit log: who changed what. Each entry is written in the transaction of its change."""

from __future__ import annotations

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from tuner.core.access.caller import AuditEntry, Caller
from tuner.core.trial.records import Page
from tuner.store.engine import gathering
from tuner.store.engine.cursors import decode_cursor, encode_cursor
from tuner.store.tables.access_models import AuditRow
from tuner.store.tables.models import table_of

_LISTING = "audit"
#: Inserts through the table, since the session's row is not needed afterwards.
_INSERT = insert(table_of(AuditRow))


def append(session: Session, caller: Caller, action: str, subject: str, now: float) -> None:
    """Adds an entry, in the transaction of the change."""
    values = {
        "at": now,
        "owner": caller.owner,
        "token_id": caller.token_id,
        "address": caller.address[:64],
        "action": action,
        "subject": subject[:64],
    }
    gathering.add(session, _INSERT, values)


def page(session: Session, cursor: str | None, limit: int) -> Page[AuditEntry]:
    """Entries, the newest first.

    Raises:
        InvalidInput: the cursor belongs to another listing.
    """
    query = select(AuditRow).order_by(AuditRow.seq.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(AuditRow.seq < decode_cursor(_LISTING, cursor, (int,))[0])
    rows = session.scalars(query).all()
    more = encode_cursor(_LISTING, [rows[limit - 1].seq]) if len(rows) > limit else None
    return Page(items=[_to_entry(row) for row in rows[:limit]], next_cursor=more)


def last_subject(session: Session, action: str) -> str | None:
    """The subject of an action's newest entry; None if there is none."""
    query = select(AuditRow.subject).where(AuditRow.action == action).order_by(AuditRow.seq.desc()).limit(1)
    return session.scalar(query)


def _to_entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        seq=row.seq,
        at=row.at,
        owner=row.owner,
        token_id=row.token_id,
        address=row.address,
        action=row.action,
        subject=row.subject,
    )
