"""Fixtures for all tests with a service: one schedule space for each problem, because listing its tilings takes a
second, and one run of the migrations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kept_tilings import kept
from tests.support.migrated import copied
from tests.support.spaces import any_space_of


@pytest.fixture(autouse=True, scope="session")
def shared_spaces() -> Iterator[None]:
    """Keeps more spaces than a server does, which has to limit its memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.service.runner.runner.any_space_of", any_space_of)
        patch.setattr("tuner.search.order.any_space_of", any_space_of)
        yield


@pytest.fixture(autouse=True, scope="session")
def copied_databases() -> Iterator[None]:
    """New stores start with a copy of an empty database."""
    with copied():
        yield


@pytest.fixture(autouse=True, scope="module")
def shared_tilings() -> Iterator[None]:
    """Tilings that another process has listed are read."""
    with kept():
        yield
