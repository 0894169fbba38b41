"""Idempotency keys: a repeated request makes only one job."""

from __future__ import annotations

from sqlalchemy.orm import Session

from tuner.errors import InvalidInput
from tuner.store.tables.models import IdempotencyKeyRow


def job_of(session: Session, key: str, body_digest: str) -> str | None:
    """The job that was created with `key`, or None if the key is new.

    Raises:
        InvalidInput: the key was used with a different body.
    """
    row = session.get(IdempotencyKeyRow, key)
    if row is not None and row.body_digest != body_digest:
        raise InvalidInput(
            "Idempotency-Key",
            (f"was used for a different body, which created {row.job_id}"),
            "use a new key for a new request",
        )
    return row.job_id if row else None


def remember(session: Session, key: str, body_digest: str, job_id: str, now: float) -> None:
    """Binds a new key to its job."""
    session.add(IdempotencyKeyRow(key=key, body_digest=body_digest, job_id=job_id, created_at=now))
