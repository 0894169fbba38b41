"""The fleet and the known results, as shown on pages."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.records import Verdict
from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View
from tuner.wire.pages.pages import ListedJob
from tuner.wire.responses.responses import EnvironmentView, PageView, QuarantineView


class WorkerView(View):
    """A card, or the simulated GPU, and what it has done since the server started."""

    target: str
    number: int = Field(description="its number among the workers of the target")
    simulated: bool
    gpu_name: str
    environment: EnvironmentView | None
    quarantine: QuarantineView | None = Field(description="why nothing can be measured there now; null if it can")
    up_s: float = Field(description="seconds since the server started")
    busy_share: float = Field(description="share of this time in which it was busy")
    trials: dict[str, int] = Field(description="recorded trials by outcome")
    trials_per_minute: float
    num_quarantines: int = Field(description="how often it was quarantined")


class CardView(View):
    """A card of the server's machine as the driver reports it now; null for missing values."""

    uuid: str
    name: str
    temperature_c: int | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    utilization: float | None = Field(description="share of recent time in which a kernel ran")
    memory_used_bytes: int | None
    memory_bytes: int | None


class SeriesView(View):
    """A figure over at most the last day."""

    name: str
    unit: str
    points: list[tuple[float, float]] = Field(description="hours ago, and the figure; oldest first")

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]

    @property
    def most(self) -> float:
        """The largest value."""
        return max(value for _, value in self.points)


class JobFailuresView(View):
    """A job with failed trials."""

    id: str
    workload: str
    num_trials: int
    num_failed: int
    kinds: dict[str, int] = Field(description="failed trials by kind, most frequent first")
    page: Link


class FleetPage(View):
    """The fleet."""

    history: list[SeriesView] = Field(description="trials per minute, and temperature, clock and power of each card")
    failures: list[JobFailuresView] = Field(description="the newest jobs with failed trials")

    workers: list[WorkerView]
    cards: list[CardView] = Field(description="of the server's machine; empty without a driver")
    running: list[ListedJob] = Field(description="jobs under way")
    jobs: dict[str, dict[str, int]] = Field(description="number of jobs by target and state")


class KnownResult(View):
    """The known results for one problem on one GPU model."""

    gpu: str
    simulated: bool
    workload: str
    m: int | None = Field(description="rows of the first product; null if the first op is none")
    dtype: str
    objective: str
    library_us: float | None
    torch_us: float | None = Field(description="PyTorch's own calls; null if they were not timed")
    ours_us: float | None = Field(description="of the winner, or of the fastest generated kernel if the library won")
    speedup: float | None = Field(description="the library's time divided by that of the generated kernel")
    ours: PlanKind | None = Field(description="the plan kind that `ours_us` is of")
    winner: PlanKind | None = Field(description="the plan kind of the verdict, or of the fastest generated kernel")
    verdict: Verdict | None = Field(description="null for built-in winners without known finals")
    source: str = Field(description="a job's id, or the name of a built-in winner")
    href: Link = Field(description="the job's page; empty for built-in winners")
    at: datetime | None
    kernel_version: str


class ResultFilterView(View):
    """Which results are listed; null for all."""

    target: str | None
    m: int | None
    n: int | None
    k: int | None


class ResultsPage(View):
    """Known results, from jobs and from shipped winners."""

    filter: ResultFilterView
    jobs: PageView[KnownResult] = Field(description="of finished jobs, newest first")
    shipped: list[KnownResult] = Field(description="built-in winners")
    shipped_targets: list[str]
