"""A simulated workbench for every benchmark that evaluates candidates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.common.setting import twin_of
from benchmarks.common.workbench import Workbench


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    twin = twin_of("simulated:h200")
    assert twin is not None
    bench = Workbench(twin)
    yield bench
    bench.close()
