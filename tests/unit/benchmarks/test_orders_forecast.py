"""The forecast against orderings that were timed on a GPU: it must predict which order is fast."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from benchmarks.orders.cases import CASES, orderings_of
from benchmarks.orders.measure import name_of
from tests.support.repository import ROOT
from tests.support.spaces import space_of
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.stats import rank_correlation, selection_regret

#: The forecast of every ordering that was timed.
pytestmark = pytest.mark.slow

H200 = CATALOGUE["h200"]
RESULTS = ROOT / "benchmarks" / "results" / "h200" / "orders.json"
ROWS = {name_of(row): row for row in json.loads(RESULTS.read_text())["rows"]}
#: In CI those with few tasks.
ROWS_OF_CASES = [(64, 512), pytest.param((2048, 4096), marks=pytest.mark.soak)]


def forecast_and_measured(row: dict[str, Any], case: Any) -> tuple[list[float], list[float]]:
    """Forecast and measured times of the row's orderings, in microseconds."""
    tiling = Schedule.from_json(row["best"]["schedule"]).tiling
    measured_us = {one["ordering"]: one["us"] for one in row["orderings"]}
    drawn = [one for one in orderings_of(space_of(case.workload, H200), tiling) if str(one.ordering) in measured_us]
    assert len(drawn) >= 10, "the orderings differ from those that were measured"
    candidates = [Candidate(plan_kind=PlanKind.FUSED, schedule=schedule) for schedule in drawn]
    forecasts_us = [forecast_us(case.workload, H200, candidate) for candidate in candidates]
    return forecasts_us, [measured_us[str(schedule.ordering)] for schedule in drawn]


@pytest.fixture(scope="module", params=ROWS_OF_CASES, ids=str)
def replayed(request: pytest.FixtureRequest) -> dict[str, tuple[list[float], list[float]]]:
    return {case.name: forecast_and_measured(ROWS[case.name], case) for case in CASES if case.m in request.param}


# In CI, tests/unit/core/model says what order changes in a forecast.
@pytest.mark.soak
def test_the_forecast_ranks_the_orders_of_one_tiling(replayed: dict[str, tuple[list[float], list[float]]]) -> None:
    found = {name: rank_correlation(*times) or 0.0 for name, times in replayed.items()}
    assert median(found.values()) >= 0.8, found
    assert min(found.values()) >= 0.65, found


# In CI, tests/unit/core/model/test_forecast.py ranks measured schedules.
@pytest.mark.soak
def test_the_order_that_the_forecast_puts_first_is_among_the_fastest(
    replayed: dict[str, tuple[list[float], list[float]]],
) -> None:
    lost = {name: selection_regret(*times, 1) for name, times in replayed.items()}
    assert max(lost.values()) <= 0.06, lost
