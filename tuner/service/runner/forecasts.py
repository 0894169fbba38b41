"""Stores a candidate's forecast, made when it was prepared, with its trial."""

from __future__ import annotations

from dataclasses import replace

from tuner.core.insight.forecast_quality import forecast_metric
from tuner.core.trial.outcome import Measured, Outcome


def with_forecast(outcome: Outcome, forecast: float | None) -> Outcome:
    """`outcome` with its forecast among the metrics, if it was measured and has one."""
    if forecast is None or not isinstance(outcome, Measured):
        return outcome
    return replace(outcome, metrics=(*outcome.metrics, forecast_metric(forecast)))
