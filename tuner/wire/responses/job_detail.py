"""A job as it stands: how well its trials were forecast, what its search began with, and its place in the queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import Field

from tuner.core.insight.forecast_quality import ForecastQuality
from tuner.core.trial.outcome import Measured
from tuner.core.trial.priors import PriorUse
from tuner.core.trial.records import JobRecord, Webhook
from tuner.wire.base.view import View, is_simulated
from tuner.wire.responses.job_view import JobView
from tuner.wire.responses.responses import CandidateView, outcome_view
from tuner.wire.responses.webhooks import WebhookView


class ForecastView(View):
    """How well the simulator's forecasts ranked the job's measured fused trials."""

    num_trials: int = Field(
        description="fused trials, launched plainly or programmatically, whichever are more, that have both times"
    )
    rank_correlation: float | None = Field(
        description="Spearman's, of forecast and measured times; 1 is the same order"
    )
    regret: float | None = Field(
        description="by how much the best of the ten with the shortest forecasts is slower than the best measured"
    )
    reason: str = Field(description="why there are no figures; empty where there are")


class PriorView(View):
    """What the search tried early, since an earlier one found it; and what came of it."""

    candidate: CandidateView
    source: str = Field(
        description="the job that found it; or `shipped` and the name of a row of the program's own; or `imported` and "
        "the name of the job elsewhere"
    )
    workload: str = Field(description="what it was found for, in one line")
    found_us: float = Field(description="its time there, microseconds")
    found_speedup: float = Field(description="the library's time there over it")
    kernel_version: str = Field(description="of what was measured there; empty where it is not known")
    is_adapted: bool = Field(description="whether the schedule was changed to suit the job's shape")
    simulated: bool
    trial_number: int | None = Field(description="the trial that tried it; null before")
    outcome: Literal["measured", "rejected", "failed"] | None = Field(description="what became of it; null before")
    time_us: float | None = Field(description="null where it was not measured")
    speedup: float | None

    @classmethod
    def of(cls, use: PriorUse, job: JobRecord) -> Self:
        """Copies `use`, which belongs to `job`."""
        prior, outcome = use.prior, use.outcome
        measured = outcome if isinstance(outcome, Measured) else None
        return cls(
            candidate=CandidateView.of(prior.candidate, job.spec.workload),
            simulated=is_simulated(job.spec.target_id),
            trial_number=use.trial_number,
            outcome=None if outcome is None else outcome_view(outcome).kind,
            time_us=None if measured is None else measured.time_us,
            speedup=None if measured is None else measured.speedup,
            **{name: getattr(prior, name) for name in _COPIED},
        )


#: Fields of a prior that are copied under their own names.
_COPIED = ("source", "workload", "found_us", "found_speedup", "kernel_version", "is_adapted")


class JobDetail(JobView):
    """A job as it stands, what its trials say of the forecasts, what its search began with, and when its turn comes."""

    forecast: ForecastView
    priors_used: list[PriorView] = Field(description="tried behind the library; empty before the search has begun")
    queue_position: int | None = Field(
        description="jobs that come before it, by priority and age; 0 for one under way, null for one that is over or "
        "paused"
    )
    queue_eta_s: float | None = Field(
        description="seconds to its end, with those of the jobs before it, by budgets, the pace of earlier jobs and "
        "the cards that work now; null where unknown"
    )
    webhooks: list[WebhookView] = Field(description="who is told of its end")

    @classmethod
    def with_trials(
        cls,
        job: JobRecord,
        quality: ForecastQuality,
        uses: Iterable[PriorUse],
        place: tuple[int | None, float | None] = (None, None),
        webhooks: Iterable[Webhook] = (),
    ) -> Self:
        """Copies all five; `place` is position in the queue and seconds to its end."""
        return cls(
            **dict(JobView.of(job)),
            forecast=ForecastView.model_validate(quality),
            priors_used=[PriorView.of(use, job) for use in uses],
            queue_position=place[0],
            queue_eta_s=place[1],
            webhooks=[WebhookView.of(webhook) for webhook in webhooks],
        )
