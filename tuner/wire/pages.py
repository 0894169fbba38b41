"""What the dashboard's pages show: a page's template and its JSON form read the same model."""

from __future__ import annotations

from pydantic import Field

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import FailureKind
from tuner.wire.inspections import InspectedFinalist
from tuner.wire.job_detail import JobDetail
from tuner.wire.job_view import JobView
from tuner.wire.responses import BestView, PageView, TargetView, TrialView
from tuner.wire.view import View


class JobsPage(View):
    """The front page."""

    targets: list[TargetView]
    state: JobState | None = Field(description="the filter; null for all")
    jobs: PageView[JobView]


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
