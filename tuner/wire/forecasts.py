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
    queue_position: int | None = Field(
        description="jobs that come before it, by priority and age; 0 for one under way, null for one that is over or "
        "paused"
    )
    eta_s: float | None = Field(
        description="seconds to the end of its search, by budgets and the pace of earlier jobs; null where unknown"
    )

    @classmethod
    def with_forecast(
        cls, job: JobRecord, quality: ForecastQuality, place: tuple[int | None, float | None] = (None, None)
    ) -> Self:
        """Copies all three; `place` is position in the queue and ETA."""
        forecast = ForecastView.model_validate(quality)
        return cls(**dict(JobView.of(job)), forecast=forecast, queue_position=place[0], eta_s=place[1])
