"""Tests of spaces share the tilings that are listed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kept_tilings import kept


@pytest.fixture(autouse=True, scope="module")
def tilings_are_listed_once() -> Iterator[None]:
    """The tilings of a space are those that another process of this run has listed."""
    with kept(with_forecasts=False):
        yield
