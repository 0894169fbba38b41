"""Selects the parameters of a test that run in `make test` and in CI, when all of them would take too long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def soaked(*values: T) -> list[object]:
    """All parameters, for `make soak` only."""
    return [pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.soak) for value in values]


def one_in(number: int, values: Iterable[T]) -> list[object]:
    """All parameters; those that are not the first of each `number` values are run by `make soak` only."""
    return soak_unless(lambda place, _: place % number == 0, values)


def soak_unless(short: Callable[[int, T], bool], values: Iterable[T]) -> list[object]:
    """All parameters; those that are not short, by index and value, are marked `soak` and run by `make soak` only.

    Raises:
        ValueError: no parameter is short.
    """
    every = list(values)
    is_short = [short(place, value) for place, value in enumerate(every)]
    if not any(is_short):
        raise ValueError("CI would not run any of them")
    return [value if kept else soaked(value)[0] for kept, value in zip(is_short, every, strict=True)]


def each_value_once(*axes: Sequence[object]) -> list[Any]:
    """All combinations of the axes' values, each a tuple. CI runs as many as the longest axis has values: the first
    values together, then the second ones, and shorter axes begin again. The others are marked `soak`."""
    longest = max(map(len, axes))
    in_ci = {tuple(place % len(axis) for axis in axes) for place in range(longest)}
    places = [*product(*(range(len(axis)) for axis in axes))]
    values = [tuple(axis[place] for axis, place in zip(axes, one, strict=True)) for one in places]
    return soak_unless(lambda number, _: places[number] in in_ci, values)
