"""A job as it stands, with how well its trials were forecast."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from tuner.core.insight.forecast_quality import ForecastQuality
from tuner.core.trial.records import JobRecord
from tuner.wire.responses import JobView
from tuner.wire.view import View


class ForecastView(View):
    """How well the simulator's forecasts ranked the job's measured fused trials."""

    num_trials: int = Field(description="plain fused trials that have a forecast and a measured time")
    rank_correlation: float | None = Field(
        description="Spearman's, of forecast and measured times; 1 is the same order"
    )
    regret: float | None = Field(
        description="by how much the best of the ten with the shortest forecasts is slower than the best measured"
    )
    reason: str = Field(description="why there are no figures; empty where there are")


class JobDetail(JobView):
    """A job as it stands, and what its trials say of the forecasts."""

    forecast: ForecastView

    @classmethod
    def with_forecast(cls, job: JobRecord, quality: ForecastQuality) -> Self:
        """Copies both."""
        return cls(**dict(JobView.of(job)), forecast=ForecastView.model_validate(quality))
