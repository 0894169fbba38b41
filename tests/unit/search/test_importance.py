"""Which axes mattered: the decisive one is found, and constant ones are left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import schedule
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.search.model.importance import FEWEST_TRIALS, axis_importances


def trials(count: int) -> list[tuple[int, Candidate, float]]:
    """Trials in which many stages are fast; reserved SMs have no effect."""
    found = []
    for number in range(count):
        one = schedule(stages := 2 + number % 4)
        one = one.but(ordering=replace(one.ordering, reserved_sms=(number // 4) % 3))
        found.append((number, Candidate(plan_kind=PlanKind.FUSED, schedule=one), 0.5 + stages / 4 + 1e-4 * number))
    return found


def test_the_axis_that_decides_has_the_largest_share_and_constant_ones_are_left_out() -> None:
    found = axis_importances(trials(48))
    assert next(iter(found.shares)) == "num_stages"
    assert set(found.values) == {"num_stages", "reserved_sms"}
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.numbers == tuple(range(48))


def test_few_trials_say_nothing() -> None:
    found = axis_importances(trials(FEWEST_TRIALS - 1))
    assert found.shares == {}
    assert axis_importances([]).values == {}
