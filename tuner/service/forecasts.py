"""Forecasts candidates while the card measures them, so that each trial keeps both."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from tuner.core.insight.forecast_quality import forecast_metric
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.outcome import Measured, Outcome
from tuner.errors import IllegalSchedule, PlanError


class Forecaster:
    """One candidate at a time, in a thread of its own."""

    def __init__(self, gpu: Gpu) -> None:
        """`gpu` is what is forecast for."""
        self._gpu = gpu
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forecast")

    def begin(self, workload: Workload, candidate: Candidate) -> Future[float | None]:
        """The forecast, microseconds; None for the library, and for what is refused."""
        return self._thread.submit(_forecast, workload, self._gpu, candidate)

    def close(self) -> None:
        """Ends the thread; what was begun is finished."""
        self._thread.shutdown()


def _forecast(workload: Workload, gpu: Gpu, candidate: Candidate) -> float | None:
    if candidate.schedule is None:
        return None
    try:
        return forecast_us(workload, gpu, candidate)
    except (IllegalSchedule, PlanError):
        return None


def with_forecast(outcome: Outcome, forecast: float | None) -> Outcome:
    """`outcome` with its forecast among the metrics, where it was measured and there is one."""
    if forecast is None or not isinstance(outcome, Measured):
        return outcome
    return replace(outcome, metrics=(*outcome.metrics, forecast_metric(forecast)))
