"""Inspections of trials on the wire: requests, counters and traces."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.records import Best, Inspection, InspectionKind, InspectionState, JobRecord
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace, no_energy
from tuner.wire.base.fields import PRINTABLE, Strict
from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View, is_simulated, moment
from tuner.wire.responses.responses import MetricView

MAX_METRICS = 64

MetricName = Annotated[str, Field(min_length=1, max_length=120, pattern=PRINTABLE)]

COUNTERS_EXAMPLES: dict[str, Any] = {
    "base set": {"summary": "The base set: an empty object, or no body", "value": {}},
    "by name": {
        "summary": "Metrics by the vendor's names",
        "value": {"metrics": ["dram__bytes_read.sum", "lts__t_sector_hit_rate.pct"]},
    },
}


class CountersRequest(Strict):
    """The body of `POST /jobs/{job_id}/trials/{number}/counters`, which is optional."""

    metrics: list[MetricName] | None = Field(
        default=None, min_length=1, max_length=MAX_METRICS, description="by the vendor's names; default: the base set"
    )

    @property
    def names(self) -> tuple[str, ...] | None:
        """Each metric once, in the given order; None for the base set."""
        return None if self.metrics is None else tuple(dict.fromkeys(self.metrics))


class InspectionView(View):
    """An inspection of a trial."""

    job_id: str
    trial_number: int
    kind: InspectionKind
    state: InspectionState
    simulated: bool = Field(description="whether its figures are simulated")
    reason: str = Field(description="why there is no result yet; empty otherwise")
    href: Link = Field(description="path of the result")
    asked_at: datetime
    finished_at: datetime | None

    @classmethod
    def fields_of(cls, inspection: Inspection, job: JobRecord) -> dict[str, Any]:
        """The common fields of all inspections, from `inspection` of a trial of `job`."""
        return {
            "job_id": inspection.job_id,
            "trial_number": inspection.trial_number,
            "kind": inspection.kind,
            "state": inspection.state,
            "simulated": is_simulated(job.spec.target_id),
            "reason": inspection.reason,
            "href": f"/jobs/{inspection.job_id}/trials/{inspection.trial_number}/{inspection.kind}",
            "asked_at": moment(inspection.asked_at),
            "finished_at": None if inspection.finished_at is None else moment(inspection.finished_at),
        }


class CounterView(View):
    """One hardware metric, or a figure derived from several."""

    name: str = Field(description="the vendor's name, or ours for a derived figure")
    unit: str
    description: str
    value: float


class CountersView(InspectionView):
    """Hardware counters of a trial's candidate, over one cold run."""

    metrics: list[str] | None = Field(description="as requested; null for the base set")
    counters: list[CounterView] = Field(
        description=("measured ones first, then derived ones; empty while pending, or if there is a reason")
    )
    num_passes: int = Field(description="how often the kernel was replayed")
    absent: dict[str, str] = Field(description="metric -> why it could not be read on this GPU")

    @classmethod
    def of(cls, inspection: Inspection, job: JobRecord) -> Self:
        """Copies `inspection`, which belongs to a trial of `job`."""
        report = (
            inspection.result
            if isinstance(inspection.result, CounterReport)
            else CounterReport(counters=(), num_passes=0)
        )
        return cls(
            **cls.fields_of(inspection, job),
            metrics=None if inspection.metrics is None else list(inspection.metrics),
            counters=[CounterView.model_validate(counter) for counter in report.counters],
            num_passes=report.num_passes,
            absent=report.absent,
        )


class EnergyView(InspectionView):
    """The energy per run of a trial's candidate under continuous load."""

    run_mj: float | None = Field(
        description=("millijoules of one run, of the whole card; null while pending, or if unknown")
    )
    power_w: float = Field(description="mean power over the window, watts; 0 if there is none, or it is simulated")
    window_s: float = Field(description="seconds of it")

    @classmethod
    def of(cls, inspection: Inspection, job: JobRecord) -> Self:
        """Copies `inspection`, which belongs to a trial of `job`."""
        report = inspection.result if isinstance(inspection.result, EnergyReport) else no_energy("")
        return cls(
            **cls.fields_of(inspection, job), run_mj=report.run_mj, power_w=report.power_w, window_s=report.window_s
        )


class TaskSpanView(View):
    """The times of one task, nanoseconds since the run's first task started."""

    launch: int
    task: int
    op: int
    tile_m: int
    tile_n: int
    cta: int
    sm: int
    taken_ns: int
    ready_ns: int = Field(description="when its waits were over")
    loaded_ns: int = Field(description="when its first operands had arrived in shared memory")
    computed_ns: int = Field(description="when its last product was done")
    stored_ns: int = Field(description="when its tile was stored and published")


class OpSharesView(View):
    """How CTAs spent their time on one op; the four shares add up to 1."""

    op: str
    wait: float
    load: float
    compute: float
    store: float


class TraceView(InspectionView):
    """A Gantt chart of one run of a trial's candidate."""

    makespan_ns: int = Field(description="from the first task's start to the last one's end")
    tail: float = Field(description="share of the CTAs' total time that came after their last tasks")
    shares: list[OpSharesView] = Field(description="one entry per op")
    op_names: list[str]
    spans: list[TaskSpanView] = Field(description="one per task; empty while pending, or if there is a reason")

    @classmethod
    def of(cls, inspection: Inspection, job: JobRecord) -> Self:
        """Copies `inspection`, which belongs to a trial of `job`."""
        trace = inspection.result if isinstance(inspection.result, Trace) else None
        return cls(
            **cls.fields_of(inspection, job),
            makespan_ns=trace.makespan_ns if trace else 0,
            tail=trace.tail if trace else 0.0,
            shares=[OpSharesView.model_validate(shares) for shares in trace.shares] if trace else [],
            op_names=list(trace.op_names) if trace else [],
            spans=[TaskSpanView.model_validate(span) for span in trace.spans] if trace else [],
        )


class TraceFile(View):
    """A trace in the Trace Event Format, for ui.perfetto.dev: the response with `format=perfetto`."""

    traceEvents: list[dict[str, Any]] = Field(description="one per phase of a task, plus names of rows")  # noqa: N815
    displayTimeUnit: str  # noqa: N815
    otherData: dict[str, Any] = Field(description="makespan, tail and shares; `simulated`")  # noqa: N815


class InspectionOnPage(InspectionView):
    """An inspection on a page."""

    figures: list[MetricView]
    download: Link | None = Field(description="path of the trace as a file for Perfetto; null if there is none")

    @classmethod
    def of(cls, inspection: Inspection, job: JobRecord) -> Self:
        """Copies `inspection`, which belongs to a trial of `job`."""
        fields = cls.fields_of(inspection, job)
        has_trace = inspection.kind is InspectionKind.TRACE and bool(inspection.figures)
        return cls(
            **fields,
            figures=[MetricView.model_validate(figure) for figure in inspection.figures],
            download=f"{fields['href']}?format=perfetto" if has_trace else None,
        )


class InspectedFinalist(View):
    """The inspections of a plan kind's best candidate."""

    plan_kind: PlanKind
    trial_number: int
    counters: InspectionOnPage | None
    trace: InspectionOnPage | None

    @classmethod
    def all_of(cls, best: Best, taken: Iterable[Inspection], job: JobRecord) -> list[Self]:
        """The inspected finalists of `best`, in the order of the finals; counters are those of the base set. Energies
        are stored in the finals."""
        base = [one for one in taken if one.metrics is None and one.kind is not InspectionKind.ENERGY]
        found = {(one.trial_number, InspectionKind(one.kind)): one for one in base}

        def view(number: int, kind: InspectionKind) -> InspectionOnPage | None:
            return InspectionOnPage.of(found[number, kind], job) if (number, kind) in found else None

        return [
            cls(
                plan_kind=row.candidate.plan_kind,
                trial_number=row.trial_number,
                counters=view(row.trial_number, InspectionKind.COUNTERS),
                trace=view(row.trial_number, InspectionKind.TRACE),
            )
            for row in best.finals
            if any(number == row.trial_number for number, _ in found)
        ]
