"""Distinct rows equal NumPy's, in its order, for any values of the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tuner.core.plan.table.distinct import distinct_rows

Table = npt.NDArray[np.integer[Any]]


def check(table: Table) -> None:
    rows, first, of = np.unique(table, axis=0, return_index=True, return_inverse=True)
    found = distinct_rows(table)
    assert found.rows.tolist() == rows.tolist()
    assert found.first.tolist() == first.tolist()
    assert found.of.tolist() == of.reshape(-1).tolist()


@given(
    st.sampled_from([np.int32, np.int64]).flatmap(
        lambda dtype: arrays(
            dtype,
            st.tuples(st.integers(0, 30), st.integers(1, 5)),
            elements=st.integers(-3, 3) | st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max),
        )
    )
)
def test_they_are_those_of_numpy(table: Table) -> None:
    check(table)


@pytest.mark.parametrize("num_columns", [1, 2, 3])
def test_numbers_at_both_ends_of_a_word_do_not_wrap(num_columns: int) -> None:
    ends = [np.iinfo(np.int64).min, -1, 0, 1, np.iinfo(np.int64).max]
    check(np.array([[end] * num_columns for end in ends for _ in range(2)]))
