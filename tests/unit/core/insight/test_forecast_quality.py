from __future__ import annotations

import pytest

from tests.support.builders import failed, measured
from tuner.core.insight.forecast_quality import MIN_TRIALS, NUM_TRUSTED, forecast_metric, forecast_of, judge_forecasts


def test_a_forecast_that_orders_as_the_card_does_is_perfect_whatever_its_scale() -> None:
    found = judge_forecasts([(float(i), 3.0 + i / 10) for i in range(MIN_TRIALS)])
    assert (found.num_trials, found.regret, found.reason) == (MIN_TRIALS, 0.0, "")
    assert found.rank_correlation == pytest.approx(1)


def test_trusting_a_forecast_that_hides_the_best_costs_what_its_ten_miss() -> None:
    trusted = [(float(i), 12.0) for i in range(NUM_TRUSTED - 1)] + [(9.5, 11.0)]
    found = judge_forecasts([*trusted, *((100.0 + i, 10.0 + i) for i in range(MIN_TRIALS - NUM_TRUSTED))])
    assert found.regret == pytest.approx(0.1)
    assert found.rank_correlation is not None
    assert found.rank_correlation < 1


def test_few_trials_say_nothing_and_the_reason_says_how_few() -> None:
    found = judge_forecasts([(1.0, 1.0)] * (MIN_TRIALS - 1))
    assert (found.rank_correlation, found.regret) == (None, None)
    assert found.reason.startswith(f"too few: {MIN_TRIALS - 1} measured")


def test_trials_that_are_all_alike_have_no_order() -> None:
    found = judge_forecasts([(1.0, float(i + 1)) for i in range(MIN_TRIALS)])
    assert found.rank_correlation is None
    assert "are equal" in found.reason


def test_a_trial_keeps_its_forecast_among_its_metrics() -> None:
    assert forecast_of(measured(5.0, metrics=(forecast_metric(4.5),))) == 4.5
    assert forecast_of(measured(5.0)) is None
    assert forecast_of(failed()) is None
