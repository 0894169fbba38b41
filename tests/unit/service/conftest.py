"""Stores of these tests, without a running service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.migrated import copied
from tuner.store import Store


@pytest.fixture(autouse=True, scope="package")
def copied_databases() -> Iterator[None]:
    with copied():
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store.open(tmp_path / "data")) as store:
        yield store
