"""A simulated workbench for every benchmark that evaluates candidates, and tilings that are listed once in a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.common.setting import twin_of
from benchmarks.common.workbench import Workbench
from tests.support.kept_tilings import kept


@pytest.fixture(scope="package", autouse=True)
def tilings() -> Iterator[None]:
    with kept():
        yield


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    twin = twin_of("simulated:h200")
    assert twin is not None
    bench = Workbench(twin)
    yield bench
    bench.close()
