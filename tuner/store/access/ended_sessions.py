"""Ended dashboard sessions: their cookies are refused, including all copies."""

from __future__ import annotations

import hashlib

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from tuner.store.tables.access_models import EndedSessionRow


def _digest(proof: str) -> str:
    return hashlib.sha256(proof.encode()).hexdigest()


def end(session: Session, proof: str, now: float) -> bool:
    """Ends the session whose random word is `proof`; returns whether it was still active."""
    if is_ended(session, proof):
        return False
    session.add(EndedSessionRow(digest=_digest(proof), ended_at=now))
    return True


def is_ended(session: Session, proof: str) -> bool:
    """Whether the session was ended."""
    return bool(session.scalar(select(exists().where(EndedSessionRow.digest == _digest(proof)))))


def forget(session: Session, before: float) -> None:
    """Removes sessions that ended before `before`; their cookies have expired."""
    session.execute(delete(EndedSessionRow).where(EndedSessionRow.ended_at < before))
