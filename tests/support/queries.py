"""The database queries of a block, and SQLite's plans for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event


@contextmanager
def plans_of(engine: Engine) -> Iterator[list[str]]:
    """The steps of the query plan of each SELECT of the block, each with its statement; complete after the block."""
    asked: list[tuple[str, Any]] = []
    steps: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            asked.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield steps
    finally:
        event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        for statement, parameters in asked:
            rows = connection.exec_driver_sql(f"explain query plan {statement}", parameters)
            steps.extend(f"{row[-1]}: {statement}" for row in rows)


def whole_tables(steps: list[str]) -> list[str]:
    """The steps that scan every row of a table or an index."""
    return [step for step in steps if step.startswith("SCAN") and "CONSTANT ROW" not in step]


@contextmanager
def statements_of(engine: Engine, *, elsewhere: bool = False) -> Iterator[list[str]]:
    """The statements of the block; with `elsewhere`, those of other threads in that time."""
    statements, caller = list[str](), threading.get_ident()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if (threading.get_ident() != caller) is elsewhere:
            statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)
