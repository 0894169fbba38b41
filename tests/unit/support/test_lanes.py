"""Which parameters run in CI."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.lanes import each_value_once


@pytest.mark.parametrize("axes", [(["a", "b"], [1, 2, 3]), ([*range(7)], [None, True], "xyz"), (["alone"],)], ids=str)
def test_each_value_runs_in_ci_and_all_combinations_in_make_soak(axes: tuple[Any, ...]) -> None:
    every = each_value_once(*axes)
    in_ci = [one for one in every if type(one) is tuple]
    soaked = [one.values for one in every if type(one) is not tuple]
    assert len(in_ci) == max(map(len, axes))
    assert [set(values) for values in zip(*in_ci, strict=True)] == [set(axis) for axis in axes]
    assert len({*in_ci, *soaked}) == len(every)
    total = 1
    for axis in axes:
        total *= len(axis)
    assert len(every) == total
