"""Searches share the tilings of their spaces, and forecasts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kept_tilings import kept


@pytest.fixture(autouse=True, scope="module")
def forecasts_are_computed_once() -> Iterator[None]:
    """The forecasts of a schedule are those that another process of this run has computed."""
    with kept():
        yield
