"""Rows that nobody reads in the transaction that adds them, written at its end: many cost little more than one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Insert
from sqlalchemy.orm import Session

_KEY = "tuner.store.gathering"


@contextmanager
def gathering(session: Session) -> Iterator[None]:
    """Rows that are added in the block are written at its end, those of one statement together and in their order.
    Where the block raises, none is."""
    gathered: dict[Insert, list[dict[str, Any]]] = {}
    session.info[_KEY] = gathered
    try:
        yield
        for statement, rows in gathered.items():
            session.connection().execute(statement, rows)
    finally:
        del session.info[_KEY]


def add(session: Session, statement: Insert, row: dict[str, Any]) -> None:
    """Writes a row, now or at the end of the block that gathers."""
    gathered: dict[Insert, list[dict[str, Any]]] | None = session.info.get(_KEY)
    if gathered is None:
        session.connection().execute(statement, row)
    else:
        gathered.setdefault(statement, []).append(row)
