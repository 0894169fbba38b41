"""Empty SQLite databases are copies of one that the migrations created once per process and its forks: running them
takes most of the time of opening a store."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import Engine, PoolProxiedConnection

from tuner.store.admin import migrate
from tuner.store.engine.engines import make_engine

_upgrade = migrate.upgrade


@cache
def empty() -> bytes:
    """The content of a database that the migrations created."""
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(Path(folder), None, 10.0)
        _upgrade(engine)
        with closing(engine.raw_connection()) as connection:
            connection.execute("pragma journal_mode = delete")  # a database in memory cannot have another log
            made = _sqlite(connection).serialize()
        engine.dispose()
    return made


@contextmanager
def copied() -> Iterator[None]:
    """Stores opened in this process during the block start as copies."""

    def copy_or_upgrade(engine: Engine, revision: str = "head") -> None:
        is_empty = engine.dialect.name == "sqlite" and migrate.revision_of(engine) is None
        if is_empty and revision == "head":
            _copy(empty(), engine)
        else:
            _upgrade(engine, revision)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "upgrade", copy_or_upgrade)
        yield


def _copy(content: bytes, target: Engine) -> None:
    with closing(sqlite3.connect(":memory:")) as source, closing(target.raw_connection()) as connection:
        source.deserialize(content)
        source.backup(_sqlite(connection))


def _sqlite(connection: PoolProxiedConnection) -> sqlite3.Connection:
    assert isinstance(connection.driver_connection, sqlite3.Connection)
    return connection.driver_connection
