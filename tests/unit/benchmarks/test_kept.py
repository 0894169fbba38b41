"""Which stored winners are used for a row on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.search.bench import kept_for
from tests.support.lanes import soaked
from tuner.winners import ShippedWinners

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("row", "gpu_id", "model"),
    [
        *soaked(("decode-plain/llama3-8b/m16", "h100", "h100"), ("decode-plain/llama3-8b/m16", "h200", "h200")),
        ("prefill-swiglu/llama3-8b/m1024", "h100", "h200"),
    ],
)
def test_they_are_those_of_its_model_or_of_another_where_it_has_none(row: str, gpu_id: str, model: str) -> None:
    found = kept_for(row, gpu_id)
    assert {one.source for one in found} == {f"shipped {row}"}
    assert set(found) <= set(ShippedWinners().of(model))
    assert [one.time_us for one in found] == sorted(one.time_us for one in found)


def test_a_row_that_no_card_was_searched_for_has_none() -> None:
    assert kept_for("decode-plain/nobody/m1", "h100") == []
