"""Collects the rows of a transaction and writes them together, since many rows cost little more than one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Insert
from sqlalchemy.orm import Session

_KEY = "tuner.store.engine.gathering"


@contextmanager
def gathering(session: Session) -> Iterator[None]:
    """Rows added in the block are written at its end, grouped by statement and otherwise in order. If the block raises,
    none is written."""
    session.info[_KEY] = {}
    try:
        yield
        write_now(session)
    finally:
        del session.info[_KEY]


def write_now(session: Session) -> None:
    """Writes the rows collected so far, for code in the same transaction that reads or refers to them."""
    gathered: dict[Insert, list[dict[str, Any]]] = session.info.get(_KEY) or {}
    for statement, rows in gathered.items():
        session.connection().execute(statement, rows)
    gathered.clear()


def add(session: Session, statement: Insert, row: dict[str, Any]) -> None:
    """Writes a row now, or at the end of the collecting block."""
    gathered: dict[Insert, list[dict[str, Any]]] | None = session.info.get(_KEY)
    if gathered is None:
        session.connection().execute(statement, row)
    else:
        gathered.setdefault(statement, []).append(row)
