"""What the dashboard's pages show: a page's template and its JSON form read the same model."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import FailureKind
from tuner.core.trial.records import Best, JobRecord, Verdict
from tuner.wire.inspections import InspectedFinalist
from tuner.wire.job_detail import JobDetail
from tuner.wire.job_view import JobView
from tuner.wire.responses import BestView, PageView, TargetView, TrialView
from tuner.wire.submit_form import SubmitForm
from tuner.wire.view import View


class ListedJob(JobView):
    """A job as a listing shows it."""

    verdict: Verdict | None = Field(description="null before it succeeded")
    winner: PlanKind | None = Field(description="the plan kind that won; null before it succeeded")
    queue_position: int | None = Field(description="jobs before it; 0 for one under way, null for one that is over")
    queue_eta_s: float | None = Field(description="seconds to the end of its search; null where unknown")

    @classmethod
    def with_standing(cls, job: JobRecord, best: Best | None, place: tuple[int | None, float | None]) -> Self:
        """Copies all three; `place` is position in the queue and seconds to the end of the search."""
        return cls(
            **dict(JobView.of(job)),
            verdict=best.verdict if best else None,
            winner=best.winner if best else None,
            queue_position=place[0],
            queue_eta_s=place[1],
        )


class JobFilterView(View):
    """Which jobs a page lists; null for all."""

    state: JobState | None
    target: str | None
    owner: str | None
    project: str | None
    label: str | None
    m: int | None
    n: int | None
    k: int | None


class JobsPage(View):
    """The front page."""

    targets: list[TargetView]
    state: JobState | None = Field(description="the filter; null for all")
    filter: JobFilterView
    num_open: int = Field(description="jobs that are queued or under way, whatever the filter")
    jobs: PageView[ListedJob]

    @property
    def is_filtered(self) -> bool:
        """Whether the page may have left out jobs."""
        return any(value is not None for value in self.filter.model_dump().values())


class SubmitPage(View):
    """The form by which people submit jobs."""

    form: SubmitForm
    bodies: list[dict[str, Any]] = Field(description="what would be posted to `/jobs`")
    curl: list[str]
    client: list[str]
    problem: str = Field(description="what is wrong with the form; empty where nothing is")


class CurvePoint(View):
    """The state of a search after a trial that was faster than all of ours before it."""

    trial_number: int
    best_us: float = Field(description="fastest of ours so far, microseconds")
    library_us: float | None = Field(description="fastest of the library so far, microseconds")


class TrialFilterView(View):
    """Which trials the table lists, and in which order."""

    outcome: str | None
    plan_kind: PlanKind | None
    reason: FailureKind | None
    sort: str


class JobPage(View):
    """All about one job."""

    job: JobDetail
    outcome_counts: dict[str, int] = Field(description="trials by outcome: measured, rejected, each kind of failure")
    curve: list[CurvePoint]
    two_launches_us: float | None = Field(description="fastest of our unfused kernels so far, microseconds")
    reference_us: float | None = Field(description="the data sheet's bound, microseconds")
    fastest: TrialView | None = Field(description="the fastest trial of ours so far")
    best: BestView | None = Field(description="finals and verdict, once the job succeeded")
    inspected: list[InspectedFinalist] = Field(description="inspections of the best of each plan kind")
    filter: TrialFilterView
    trials: PageView[TrialView]
