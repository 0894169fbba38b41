"""How well the simulator's forecasts ranked the trials of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.core.trial.outcome import Measured, Metric, Outcome
from tuner.core.trial.stats import rank_correlation, selection_regret

#: Tag of the metric in which a measured trial of a generated kernel records its candidate's forecast, microseconds.
FORECAST = "forecast"
#: With fewer trials there are no figures: any ten of them would include nearly the best.
MIN_TRIALS = 20
#: How many of the shortest forecasts a user who trusts forecasts would try.
NUM_TRUSTED = 10


@dataclass(frozen=True, kw_only=True)
class ForecastQuality:
    """Forecast against measured times of a job's fused trials, all of one kind so that only schedules differ."""

    #: Trials with both a forecast and a measured time.
    num_trials: int
    #: Spearman's correlation, 1 for the same order; None if there are too few trials, or all times are equal.
    rank_correlation: float | None = None
    #: How much slower the fastest of the `NUM_TRUSTED` trials with the shortest forecasts is than the fastest of all
    #: trials, relative; None if there are too few.
    regret: float | None = None

    @property
    def reason(self) -> str:
        """Why there are no figures; empty if there are."""
        if self.num_trials < MIN_TRIALS:
            return f"too few: {self.num_trials} measured fused trials have a forecast; at least {MIN_TRIALS} are needed"
        return "" if self.rank_correlation is not None else "all forecasts, or all measured times, are equal"


def judge_forecasts(pairs: Iterable[tuple[float, float]]) -> ForecastQuality:
    """The quality of forecasts, from pairs (forecast, measured), each in any unit: only ranks and ratios matter."""
    both = list(pairs)
    if len(both) < MIN_TRIALS:
        return ForecastQuality(num_trials=len(both))
    forecasts, measured = [forecast for forecast, _ in both], [time for _, time in both]
    return ForecastQuality(
        num_trials=len(both),
        rank_correlation=rank_correlation(forecasts, measured),
        regret=selection_regret(forecasts, measured, NUM_TRUSTED),
    )


def forecast_of(outcome: Outcome) -> float | None:
    """The forecast of a trial, microseconds; None if it has none."""
    metrics = outcome.metrics if isinstance(outcome, Measured) else ()
    return next((metric.value for metric in metrics if metric.tag == FORECAST), None)


def forecast_metric(forecast_us: float) -> Metric:
    """The forecast as a metric of a trial."""
    return Metric(tag=FORECAST, unit="us", value=forecast_us)
