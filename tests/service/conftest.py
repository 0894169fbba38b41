"""What all tests with a service have: one space for each problem, since listing the tilings of one takes a second, and
one run of the migrations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.migrated import copied
from tests.support.spaces import any_space_of


@pytest.fixture(autouse=True, scope="session")
def shared_spaces() -> Iterator[None]:
    """More spaces are kept than a server keeps, which must think of its memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.service.runner.runner.any_space_of", any_space_of)
        patch.setattr("tuner.search.order.any_space_of", any_space_of)
        yield


@pytest.fixture(autouse=True, scope="session")
def copied_databases() -> Iterator[None]:
    """New stores begin with a copy of an empty one."""
    with copied():
        yield
