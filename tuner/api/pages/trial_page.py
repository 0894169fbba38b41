"""The data of a trial's page."""

from __future__ import annotations

from contextlib import suppress

from tuner.api.routes.trials import gpu_of, plans_of, trial_view
from tuner.core.insight.advice import advise
from tuner.core.insight.derived_counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES
from tuner.core.insight.explain import differences
from tuner.core.insight.traces.gantt import Gantt
from tuner.core.insight.waterfall import TITLES, NoWaterfall, sum_in_words, waterfall_of_trial
from tuner.core.plan.table.header import FIRST_WAVE, STATIC, TICKET
from tuner.core.problem.resources import occupancy_limits
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import InspectionKind, JobRecord, kernel_row
from tuner.errors import Conflict, InvalidInput, NotFound
from tuner.service import Service
from tuner.wire.base.view import is_simulated
from tuner.wire.pages.pages import OpRow
from tuner.wire.pages.trial_page import (
    AdviceView,
    BarView,
    BestTrialView,
    DifferenceView,
    DownloadView,
    LaunchView,
    OpTimeView,
    RooflinePoint,
    RooflineView,
    SmView,
    TimelinePage,
    TrialPage,
    WaitView,
    WaterfallView,
)
from tuner.wire.responses.inspections import CountersView, InspectionOnPage
from tuner.wire.responses.samples import SamplesView

_ASSIGNMENTS = {
    STATIC: "queues, filled before the launch",
    TICKET: "tickets",
    FIRST_WAVE: "an assigned first wave, then tickets",
}
#: Maximum number of waits in a table.
_MAX_WAITS = 20


def trial_page(service: Service, job_id: str, number: int) -> tuple[TrialPage, tuple[VerifiedPlan, ...]]:
    """The page of a trial, and the plans for its picture.

    Raises:
        NotFound: no such job or trial.
    """
    job, trial = service.job(job_id), service.trial(job_id, number)
    try:
        plans, plan_reason = plans_of(service, job, trial), ""
    except Conflict as conflict:
        plans, plan_reason = (), str(conflict)
    best = _best(service, job)
    counters, trace = _counters(service, job, number), _trace(service, job, number)
    page = TrialPage(
        job_id=job_id,
        workload=job.spec.workload.describe(),
        target=job.spec.target_id,
        simulated=is_simulated(job.spec.target_id),
        num_trials=job.num_trials,
        trial=trial_view(service, job, trial),
        best=None if best is None else _best_view(best),
        differences=[] if best is None else _differences(trial, best),
        ops=OpRow.all_of(job.spec.workload, trial.candidate),
        launches=[_launch(plan) for plan in plans],
        plan_reason=plan_reason,
        samples=_samples(service, job, number),
        counters=counters,
        trace=trace,
        advice=_advice(service, job, trial, counters),
        waterfall=_waterfall(service, job, trial),
        roofline=_roofline(service, job, trial, counters),
        downloads=_downloads(service, job, trial, len(plans), trace),
    )
    return page, plans


def _best(service: Service, job: JobRecord) -> Trial | None:
    found = [
        trial
        for kind in PlanKind
        if kind.is_ours
        for trial in service.trials(job.id, limit=1, outcome="measured", plan_kind=kind, sort="time").items
    ]
    return min(found, key=_time_us, default=None)


def _time_us(trial: Trial) -> float:
    assert isinstance(trial.outcome, Measured)
    return trial.outcome.time_us


def _best_view(best: Trial) -> BestTrialView:
    assert isinstance(best.outcome, Measured)
    return BestTrialView(
        number=best.number,
        plan_kind=best.candidate.plan_kind,
        time_us=best.outcome.time_us,
        speedup=best.outcome.speedup,
        text=str(best.candidate.schedule or ""),
    )


def _differences(trial: Trial, best: Trial) -> list[DifferenceView]:
    """The differences, by axis; empty if the schedule has no axes besides its plan kind."""
    if trial.number == best.number:
        return []
    here, there = trial.candidate, best.candidate
    found = []
    if here.plan_kind is not there.plan_kind:
        found.append(DifferenceView(axis="plan kind", here=here.plan_kind.heading, best=there.plan_kind.heading))
    if here.schedule is not None and there.schedule is not None:
        for change in differences(here.schedule, there.schedule):
            axis, _, values = change.partition(" ")
            before, _, after = values.partition(" -> ")
            found.append(DifferenceView(axis=axis.replace("_", " "), here=before, best=after))
    return found


def _launch(plan: VerifiedPlan) -> LaunchView:
    words, limits = plan.plan, occupancy_limits(plan.resources, plan.gpu)
    fewest = min(limits, key=lambda name: limits[name])
    return LaunchView(
        ops=[plan.graph.workload.tile_ops[op].name for op in plan.graph.grids],
        num_tasks=words.num_tasks,
        num_ctas=words.num_ctas,
        assignment=_ASSIGNMENTS[words.assignment],
        num_signals=words.num_signals,
        num_waits=int((words.tasks[:, 4] - words.tasks[:, 3]).sum()),
        plan_bytes=len(words.table),
        smem_bytes=plan.resources.smem_bytes,
        num_threads=plan.resources.num_threads,
        ctas_per_sm=limits[fewest],
        limited_by=fewest,
    )


def _samples(service: Service, job: JobRecord, number: int) -> SamplesView | None:
    try:
        trial, measured = service.samples(job.id, number)
    except NotFound:
        return None
    return SamplesView.of(trial, measured, job)


def _counters(service: Service, job: JobRecord, number: int) -> CountersView | None:
    try:
        return CountersView.of(service.inspection(job.id, number, InspectionKind.COUNTERS), job)
    except (NotFound, InvalidInput):
        return None


def _trace(service: Service, job: JobRecord, number: int) -> InspectionOnPage | None:
    """The most recently requested trace, without its spans, which the page loads separately."""
    found = [one for one in service.inspections(job.id, {number}) if one.kind is InspectionKind.TRACE]
    return InspectionOnPage.of(found[-1], job) if found else None


def _waterfall(service: Service, job: JobRecord, trial: Trial) -> WaterfallView | None:
    if not isinstance(trial.outcome, Measured):
        return None
    results = []
    for kind in (InspectionKind.COUNTERS, InspectionKind.TRACE):
        with suppress(NotFound, InvalidInput):
            results.append(service.inspection(job.id, trial.number, kind).result)
    time_us = trial.outcome.time_us
    try:
        found = waterfall_of_trial(trial.outcome, job.spec.workload.num_flops, results)
    except NoWaterfall as error:
        return WaterfallView(bars=[], sum_us=0.0, holds=False, sentence=f"Not available: {error}.")
    return WaterfallView(
        bars=[
            BarView(name=name, title=TITLES[name], us=us, note=found.notes.get(name, ""))
            for name, us in found.bars_us.items()
        ],
        sum_us=found.sum_us,
        holds=found.holds(time_us),
        sentence=sum_in_words(found, time_us),
    )


def _advice(service: Service, job: JobRecord, trial: Trial, counters: CountersView | None) -> AdviceView | None:
    """Advice based on the counted bytes if there are counters, otherwise on the minimum number of bytes."""
    gpu, workload, outcome = gpu_of(service, job), job.spec.workload, trial.outcome
    if gpu is None or not isinstance(outcome, Measured) or not trial.candidate.plan_kind.is_ours:
        return None
    counted = {one.name: one.value for one in counters.counters} if counters else {}
    read = counted.get(DRAM_READ_BYTES)
    found = advise(
        gpu,
        time_us=outcome.time_us,
        num_flops=float(workload.num_flops),
        moved_bytes=read + counted.get(DRAM_WRITE_BYTES, 0.0) if read else float(workload.compulsory_bytes),
        over_floor=read / workload.compulsory_read_bytes if read else None,
    )
    return AdviceView.model_validate(found)


def _roofline(service: Service, job: JobRecord, trial: Trial, counters: CountersView | None) -> RooflineView | None:
    gpu, workload, outcome = gpu_of(service, job), job.spec.workload, trial.outcome
    if gpu is None or not isinstance(outcome, Measured):
        return None
    counted = {one.name: one.value for one in counters.counters} if counters else {}
    moved = counted.get(DRAM_READ_BYTES, 0.0) + counted.get(DRAM_WRITE_BYTES, 0.0)
    fewest = float(workload.compulsory_bytes)
    points = [RooflinePoint(name="fewest bytes", dram_bytes=fewest, time_us=outcome.time_us, is_counted=False)]
    if moved:
        points.append(RooflinePoint(name="counted bytes", dram_bytes=moved, time_us=outcome.time_us, is_counted=True))
    if trial.candidate.plan_kind.is_ours:
        name = "library, fewest bytes"
        points.append(RooflinePoint(name=name, dram_bytes=fewest, time_us=outcome.library_us, is_counted=False))
    return RooflineView(
        flops=float(workload.num_flops),
        dram_bytes_per_s=gpu.dram_bytes_per_s,
        flops_per_s=gpu.tensor_flops_per_s,
        points=points,
    )


def _downloads(
    service: Service, job: JobRecord, trial: Trial, num_plans: int, trace: InspectionOnPage | None
) -> list[DownloadView]:
    base = f"/jobs/{job.id}/trials/{trial.number}"
    found = [DownloadView(name="Trial", href=base, what="candidate, outcome and figures, JSON")]
    if isinstance(trial.outcome, Measured) and trial.outcome.rounds:
        found.append(DownloadView(name="Samples", href=f"{base}/samples", what="every round with its clocks, JSON"))
    if trial.candidate.schedule is not None:
        found.append(DownloadView(name="Source", href=f"{base}/source", what="CUDA C++"))
    for launch in range(num_plans):
        name = "Plan" if num_plans == 1 else f"Plan of launch {launch}"
        found.append(DownloadView(name=name, href=f"{base}/plan?launch={launch}", what="the order, as 32-bit words"))
    if num_plans:
        found.append(DownloadView(name="Forecast", href=f"{base}/gantt?of=forecast", what="tasks and times, JSON"))
    if trace is not None and trace.download:
        found.append(DownloadView(name="Trace", href=trace.download, what="for Perfetto, JSON"))
        found.append(DownloadView(name="Trace", href=f"{base}/gantt?of=measured", what="tasks and times, JSON"))
    found += _artifact(service, job, trial)
    return found


def _artifact(service: Service, job: JobRecord, trial: Trial) -> list[DownloadView]:
    """The job's artifact, if it is this trial's kernel."""
    try:
        best = service.best(job.id)
    except NotFound:
        return []
    digest, row = best.artifact_digest, kernel_row(best.finals, best.winner, job.spec.energy_within_percent)
    if digest is None or row is None or row.trial_number != trial.number:
        return []
    return [DownloadView(name="Kernel", href=f"/artifacts/{digest}", what="source, plan, manifest and cubin, zip")]


def timeline_page(job_id: str, number: int, of: str, gantt: Gantt) -> TimelinePage:
    """The data of the page that shows a run as tables."""
    ops = gantt.tasks[:, 1]
    return TimelinePage(
        job_id=job_id,
        number=number,
        of=of,
        simulated=gantt.simulated,
        makespan_us=gantt.makespan_ns / 1e3,
        ops=[
            OpTimeView(op=name, num_tasks=int((ops == op).sum()), **shares)
            for op, (name, shares) in enumerate(gantt.shares().items())
        ],
        waits=[_wait(gantt, task, who) for task, who in gantt.longest_waits(_MAX_WAITS)],
        sms=[
            SmView(
                sm=sm, num_tasks=num_tasks, **{name: time / max(1, sum(times.values())) for name, time in times.items()}
            )
            for sm, num_tasks, times in gantt.per_sm()
        ],
    )


def _wait(gantt: Gantt, task: int, who: int) -> WaitView:
    _, op, row, col, _, sm, taken, ready, *_ = gantt.tasks[task].tolist()
    for_op, for_tile, for_sm = "", "", None
    if who >= 0:
        _, awaited, for_row, for_col, _, for_sm, *_ = gantt.tasks[who].tolist()
        for_op, for_tile = gantt.op_names[awaited], f"({for_row}, {for_col})"
    return WaitView(
        task=task,
        op=gantt.op_names[op],
        tile=f"({row}, {col})",
        sm=sm,
        waited_us=(ready - taken) / 1e3,
        for_op=for_op,
        for_tile=for_tile,
        for_sm=for_sm,
    )
