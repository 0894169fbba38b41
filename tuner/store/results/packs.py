"""Packs, which are kept because lock files refer to them."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from tuner.store.results.artifacts import register
from tuner.store.tables.models import PackRow


def insert(session: Session, digest: str, size_bytes: int, order: dict[str, Any], now: float) -> None:
    """Registers a pack whose file exists; an existing entry does not change."""
    if session.get(PackRow, digest) is None:
        register(session, digest, size_bytes, now)
        session.add(PackRow(digest=digest, order=order, created_at=now))
