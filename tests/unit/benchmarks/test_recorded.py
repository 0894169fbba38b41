"""What a recorded trial measured, by its rounds: the same figure as its job took from them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.search.recorded import speedup_of

KEPT = [100.0, 102.0, 1597, 1637, None]
SLOW = [100.0, 50.0, 1200, 1637, "slow_clock"]
#: Of an H200: the library's one sample was held up, its clock rose, and every other round counted as slow.
HELD_UP = [100.0, 200.0, 1597, 1798, None]


def trial(*rounds: list[Any], outcome: str = "measured") -> dict[str, Any]:
    return {"outcome": outcome, "rounds": list(rounds)}


def test_rounds_that_do_not_count_are_left_out() -> None:
    assert speedup_of(trial(*[KEPT] * 3, *[SLOW] * 9)) == pytest.approx(1.02)


def test_where_too_few_rounds_count_all_are_taken_as_the_job_does() -> None:
    others = [[100.0, 102.0, 1597, 1637, "slow_clock"]] * 7
    assert speedup_of(trial(*others, HELD_UP)) == pytest.approx(1.02)


@pytest.mark.parametrize(
    "one", [trial(outcome="failed"), trial([100.0, 80.0, 0, 0, "preview"]), trial(KEPT, outcome="rejected")]
)
def test_what_was_not_measured_or_only_previewed_has_none(one: dict[str, Any]) -> None:
    assert speedup_of(one) is None
