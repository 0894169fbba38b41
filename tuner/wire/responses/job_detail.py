"""A job with the accuracy of its forecasts, its priors, and its position in the queue."""

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
        description="fused trials with both times, for the more frequent kind of launch, plain or programmatic"
    )
    rank_correlation: float | None = Field(
        description="Spearman's, between forecast and measured times; 1 means the same order"
    )
    regret: float | None = Field(
        description="how much slower the best of the ten shortest forecasts is than the best measured"
    )
    reason: str = Field(description="why there are no figures; empty if there are")


class PriorView(View):
    """A prior, which the search tried early because an earlier search found it, and its result."""

    candidate: CandidateView
    source: str = Field(
        description=(
            "the job that found it; or `shipped` and the name of a built-in winner; or `imported` and "
            "the name of an external job"
        )
    )
    workload: str = Field(description="the workload for which it was found, in one line")
    found_us: float = Field(description="its time where it was found, microseconds")
    found_speedup: float = Field(description="the library's time divided by its time, where it was measured")
    kernel_version: str = Field(description="version of the kernel sources where it was measured; empty if unknown")
    is_adapted: bool = Field(description="whether the schedule was adapted to the job's shape")
    simulated: bool
    trial_number: int | None = Field(description="the trial that tried it; null if it was not tried yet")
    outcome: Literal["measured", "rejected", "failed"] | None = Field(
        description="its outcome; null if it was not tried yet"
    )
    time_us: float | None = Field(description="null if it was not measured")
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
    """A job and its state, the accuracy of its forecasts, its priors, and its position in the queue."""

    forecast: ForecastView
    priors_used: list[PriorView] = Field(description="tried after the library; empty until the search starts")
    queue_position: int | None = Field(
        description=(
            "jobs ahead of it, by priority and age; 0 while it runs, null once it has ended or while it is paused"
        )
    )
    queue_eta_s: float | None = Field(
        description=(
            "estimated seconds until it ends, including the jobs ahead of it, from budgets, the pace of "
            "earlier jobs and the currently usable cards; null if unknown"
        )
    )
    webhooks: list[WebhookView] = Field(description="who is notified when it ends")

    @classmethod
    def with_trials(
        cls,
        job: JobRecord,
        quality: ForecastQuality,
        uses: Iterable[PriorUse],
        place: tuple[int | None, float | None] = (None, None),
        webhooks: Iterable[Webhook] = (),
    ) -> Self:
        """Copies all arguments; `place` is the job's position in the queue, and the seconds until its end."""
        return cls(
            **dict(JobView.of(job)),
            forecast=ForecastView.model_validate(quality),
            priors_used=[PriorView.of(use, job) for use in uses],
            queue_position=place[0],
            queue_eta_s=place[1],
            webhooks=[WebhookView.of(webhook) for webhook in webhooks],
        )
