"""Every test of the store runs on both databases, except for those that open their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.migrated import copied
from tests.support.postgres import PostgreSQL, postgresql
from tuner.store import Store


@pytest.fixture(autouse=True, scope="package")
def copied_databases() -> Iterator[None]:
    """New stores start with a copy of an empty one; the migrations have their own tests."""
    with copied():
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[PostgreSQL]:
    with postgresql() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """The database's URL; None for SQLite in the data folder."""
    if request.param == "sqlite":
        return None
    server: PostgreSQL = request.getfixturevalue("server")
    return server.migrated_database()


@pytest.fixture
def store(tmp_path: Path, database_url: str | None) -> Iterator[Store]:
    store = Store.open(tmp_path / "data", database_url)
    yield store
    store.close()
