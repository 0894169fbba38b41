"""The data of one trial's page; its template and its JSON form use the same model."""

from __future__ import annotations

from pydantic import Field

from tuner.core.insight.advice import Bound
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View
from tuner.wire.pages.pages import OpRow
from tuner.wire.responses.inspections import CountersView, InspectionOnPage
from tuner.wire.responses.responses import TrialView
from tuner.wire.responses.samples import SamplesView


class BestTrialView(View):
    """The fastest trial of the job so far, for comparison."""

    number: int
    plan_kind: PlanKind
    time_us: float
    speedup: float
    text: str = Field(description="its schedule in one line")


class DifferenceView(View):
    """An axis in which the schedule differs from the best one."""

    axis: str
    here: str
    best: str


class LaunchView(View):
    """One launch of the candidate, from its plan."""

    ops: list[str]
    num_tasks: int
    num_ctas: int
    assignment: str = Field(description="how tasks are assigned to CTAs")
    num_signals: int
    num_waits: int = Field(description="number of waits of all tasks")
    plan_bytes: int
    smem_bytes: int = Field(description="of one CTA, estimated before it is compiled")
    num_threads: int
    ctas_per_sm: int
    limited_by: str = Field(description="the resource that limits the CTAs per SM")


class RooflinePoint(View):
    """A run on the roofline."""

    name: str
    dram_bytes: float = Field(description="bytes that it moved through DRAM")
    time_us: float
    is_counted: bool = Field(
        description=("whether the bytes were counted; otherwise they are the minimum, or a forecast")
    )


class RooflineView(View):
    """The bound of the workload on this GPU, and the positions of runs."""

    flops: float = Field(description="operations that the workload needs")
    dram_bytes_per_s: float = Field(description="the data sheet's rate")
    flops_per_s: float = Field(description="the data sheet's rate of the tensor cores")
    points: list[RooflinePoint]


class DownloadView(View):
    """A file for download."""

    name: str
    href: Link
    what: str = Field(description="one line")


class BarView(View):
    """A part of a run's time."""

    name: str = Field(
        description=("the part: `main_loop`, `unneeded_rows`, `tail`, `l2_traffic`, `epilogue` or `launch`")
    )
    title: str = Field(description="what it is")
    us: float
    note: str = Field(description="the part that includes it, if it was not measured separately; else empty")


class WaterfallView(View):
    """How a run spends its time."""

    bars: list[BarView] = Field(description="in drawing order; empty if there are no counters")
    sum_us: float
    holds: bool = Field(description="whether the bars add up to the measured time within 5 %")
    sentence: str = Field(description="a sentence that assesses the bars, or explains why there are none")


class AdviceView(View):
    """The kernel's bottleneck, and suggestions."""

    bound: Bound
    dram_share: float = Field(
        description=("share of the data sheet's DRAM rate; uses the minimum bytes if there are no counters")
    )
    tensor_share: float = Field(description="share of the data sheet's tensor rate")
    over_floor: float | None = Field(description="bytes read divided by the minimum; null without counters")
    tries: tuple[str, ...] = Field(description="sentences, most promising first")


class TrialPage(View):
    """All data of a trial."""

    job_id: str
    workload: str
    target: str
    simulated: bool
    num_trials: int = Field(description="trials of the job so far")
    trial: TrialView
    best: BestTrialView | None = Field(
        description=("the fastest trial of a generated kernel so far; null before there is one")
    )
    differences: list[DifferenceView] = Field(description="how it differs from the best; empty if it is the best")
    ops: list[OpRow] = Field(description="the ops of a chain, in this trial's launches; empty for a pair")
    launches: list[LaunchView]
    plan_reason: str = Field(description="why there are no plans; empty if there are some, and for the library")
    samples: SamplesView | None = Field(description="null if nothing was measured, or the samples were removed")
    counters: CountersView | None = Field(description="the latest inspection; null if none was requested")
    trace: InspectionOnPage | None = Field(description="null if none was requested")
    advice: AdviceView | None = Field(description="null if the GPU is unknown, or nothing was measured")
    waterfall: WaterfallView | None = Field(description="null if it was not measured")
    roofline: RooflineView | None = Field(description="null if the GPU is unknown, or nothing was measured")
    downloads: list[DownloadView]


class OpTimeView(View):
    """How CTAs spent their time on one op."""

    op: str
    num_tasks: int
    wait: float
    load: float
    compute: float
    store: float


class WaitView(View):
    """A task that waited, and what it waited for."""

    task: int
    op: str
    tile: str
    sm: int
    waited_us: float
    for_op: str = Field(description="op of the last task that it waited for; empty if unknown")
    for_tile: str
    for_sm: int | None


class SmView(View):
    """The work of one SM, in shares of its CTAs' time."""

    sm: int
    num_tasks: int
    wait: float
    load: float
    compute: float
    store: float


class TimelinePage(View):
    """A trace or a forecast as tables, with the same data as the Gantt chart."""

    job_id: str
    number: int
    of: str = Field(description="`measured` or `forecast`")
    simulated: bool
    makespan_us: float
    ops: list[OpTimeView]
    waits: list[WaitView] = Field(description="the longest first")
    sms: list[SmView]


class SourcePage(View):
    """The source of a trial's kernel."""

    job_id: str
    number: int
    schedule: str
    num_lines: int
    source: str
