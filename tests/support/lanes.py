"""Which parameters of a test run in `make test`, where all of them would take too long."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")


def slow_unless(quick: Callable[[T], bool], values: Iterable[T]) -> list[object]:
    """All of them; those that are not quick are marked `slow`.

    Raises:
        ValueError: none is quick.
    """
    every = list(values)
    if not any(map(quick, every)):
        raise ValueError("make test would run none of them")
    return [value if quick(value) else pytest.param(value, marks=pytest.mark.slow) for value in every]
