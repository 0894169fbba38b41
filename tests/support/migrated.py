"""Empty SQLite databases are copies of one that the migrations created once per process: running them takes most of the
time of opening a store."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tuner.store.admin import migrate
from tuner.store.engine.engines import make_engine


@contextmanager
def copied() -> Iterator[None]:
    """Stores opened in this process during the block start as copies."""
    upgrade = migrate.upgrade
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        made = make_engine(Path(folder), None, 10.0)
        upgrade(made)

        def copy_or_upgrade(engine: Engine, revision: str = "head") -> None:
            is_empty = engine.dialect.name == "sqlite" and migrate.revision_of(engine) is None
            if is_empty and revision == "head":
                _copy(made, engine)
            else:
                upgrade(engine, revision)

        patch.setattr(migrate, "upgrade", copy_or_upgrade)
        yield
        made.dispose()


def _copy(source: Engine, target: Engine) -> None:
    connections = source.raw_connection(), target.raw_connection()
    try:
        one, other = (connection.driver_connection for connection in connections)
        assert isinstance(one, sqlite3.Connection)
        assert isinstance(other, sqlite3.Connection)
        one.backup(other)
    finally:
        for connection in connections:
            connection.close()
