"""Routes of one trial: details, source, plans, and its run as columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query, Response

from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.api.routes.jobs import JobId, TrialNumber, trials_view
from tuner.core.insight.traces.gantt import Gantt, forecast_gantt, gantt_of_trace
from tuner.core.problem.gpu import Gpu, parse_target
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.job import Trial
from tuner.core.trial.records import InspectionKind, JobRecord, Page
from tuner.core.trial.reports.inspection import Trace
from tuner.errors import Conflict, IllegalSchedule, InvalidInput, NotFound, PlanError
from tuner.service import Service
from tuner.wire.pages.gantt import GanttView
from tuner.wire.responses.responses import TrialView

T = TypeVar("T")

GanttOf = Annotated[
    Literal["measured", "forecast"],
    Query(description="`measured`: the latest trace; `forecast`: the simulator's"),
]
Launch = Annotated[int, Query(ge=0, le=100, description="which launch of the candidate")]


def trial_view(service: Service, job: JobRecord, trial: Trial) -> TrialView:
    """The trial as listings show it, with the figures of its inspections."""
    return trials_view(service, job, Page(items=[trial], next_cursor=None)).items[0]


def gpu_of(service: Service, job: JobRecord) -> Gpu | None:
    """The job's GPU, as a live card of this server or else the catalogue describes it; None if it is unknown."""
    live = {target.id: target.gpu for target, _ in service.targets()}
    try:
        return live.get(job.spec.target_id) or parse_target(job.spec.target_id).gpu
    except InvalidInput:
        return None


def plans_of(service: Service, job: JobRecord, trial: Trial) -> tuple[VerifiedPlan, ...]:
    """The plans of a trial's launches; none for the library.

    Raises:
        Conflict: the plans are refused, with the reason, or the GPU is unknown.
    """
    return _on_its_gpu(service, job, trial, _plans)


def _on_its_gpu(service: Service, job: JobRecord, trial: Trial, asked: Callable[[Workload, Gpu, Candidate], T]) -> T:
    gpu = gpu_of(service, job)
    if gpu is None:
        raise Conflict(f"the GPU of {job.spec.target_id} is unknown here; use a server that knows it")
    try:
        return asked(job.spec.workload, gpu, trial.candidate)
    except (IllegalSchedule, PlanError) as error:
        raise Conflict(f"trial {trial.number} of {job.id} has no plan: {error}") from error


@lru_cache(maxsize=8)
def _plans(workload: Workload, gpu: Gpu, candidate: Candidate) -> tuple[VerifiedPlan, ...]:
    """Cached, since a page requests them several times."""
    return plans_for(workload, gpu, candidate)


def gantt_of(service: Service, job_id: str, number: int, of: str) -> Gantt:
    """A trial's run: its trace or its forecast.

    Raises:
        NotFound: no such job or trial, or no trace was requested.
        Conflict: there is nothing to draw, with the reason.
    """
    job, trial = service.job(job_id), service.trial(job_id, number)
    if not trial.candidate.plan_kind.is_ours:
        raise Conflict(f"trial {number} of {job_id} runs the library's kernels, which cannot be traced")
    if of == "forecast":
        return _on_its_gpu(service, job, trial, forecast_gantt)
    inspection = service.inspection(job_id, number, InspectionKind.TRACE)
    if not isinstance(inspection.result, Trace) or not inspection.result.spans:
        raise Conflict(f"trial {number} of {job_id} has no trace: {inspection.reason or 'it is being collected'}")
    try:
        plans = plans_of(service, job, trial)
    except Conflict:
        plans = ()
    gpu = gpu_of(service, job)
    return gantt_of_trace(inspection.result, plans, gpu.num_sms if gpu else 0)


def trial_routes(service: Service) -> APIRouter:
    """Returns the routes that a trial's page loads and links to."""
    router = APIRouter(tags=["trials"], responses=PROBLEM_RESPONSES)

    @router.get("/jobs/{job_id}/trials/{number}")
    def get_trial(job_id: JobId, number: TrialNumber) -> TrialView:
        """One trial: its candidate and its outcome."""
        return trial_view(service, service.job(job_id), service.trial(job_id, number))

    @router.get("/jobs/{job_id}/trials/{number}/gantt", response_model=GanttView)
    def get_gantt(job_id: JobId, number: TrialNumber, of: GanttOf = "forecast") -> Response:
        """The tasks of a run with their times, as columns, and which tasks wait for which; 409 if there is no run."""
        view = GanttView.of_gantt(gantt_of(service, job_id, number, of), of)
        return Response(view.model_dump_json(), media_type="application/json")

    @router.get(
        "/jobs/{job_id}/trials/{number}/source",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "CUDA C++"}},
    )
    def get_source(job_id: JobId, number: TrialNumber) -> Response:
        """The source of the trial's kernel."""
        headers = {"Content-Disposition": f'attachment; filename="{job_id}-trial-{number}.cu"'}
        return Response(service.source(job_id, number), headers=headers, media_type="text/plain; charset=utf-8")

    @router.get(
        "/jobs/{job_id}/trials/{number}/plan",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}, "description": "32-bit words"}},
    )
    def get_plan(job_id: JobId, number: TrialNumber, launch: Launch = 0) -> Response:
        """The plan of one of the trial's launches, in the format that the kernel reads."""
        plans = plans_of(service, service.job(job_id), service.trial(job_id, number))
        if launch >= len(plans):
            raise NotFound(f"trial {number} of {job_id} has {len(plans)} launches; there is no launch {launch}")
        headers = {"Content-Disposition": f'attachment; filename="{job_id}-trial-{number}-plan{launch}.bin"'}
        return Response(plans[launch].plan.table, headers=headers, media_type="application/octet-stream")

    return router
