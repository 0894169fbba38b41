"""The dashboard: server-rendered pages, each with its JSON form at the same path and `.json`."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from tuner.api.access import Asker
from tuner.api.batches import BatchId, batch_page, batches_page
from tuner.api.errors import PROBLEM_RESPONSES
from tuner.api.inspection_table import inspection_table
from tuner.api.jobs import Cursor, JobId, KindFilter, OutcomeFilter, ReasonFilter, Sort, trials_view
from tuner.api.plot import Plot, draw
from tuner.api.rendering import STATIC_PATH, render
from tuner.api.results import target_views
from tuner.core.access.caller import Role
from tuner.core.model.bounds import reference_us
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import FailureKind
from tuner.core.trial.records import JobRecord
from tuner.errors import InvalidInput
from tuner.service import Service
from tuner.wire.batches import BatchesPage, BatchPage
from tuner.wire.inspections import InspectedFinalist
from tuner.wire.job_detail import JobDetail
from tuner.wire.job_view import JobView
from tuner.wire.pages import CurvePoint, JobPage, JobsPage, TrialFilterView
from tuner.wire.responses import BestView, PageView, TrialView

_JOBS_PER_PAGE = 50
_TRIALS_PER_PAGE = 100

#: What the filters offer.
_CHOICES = {
    "outcome": ("measured", "rejected", "failed"),
    "plan_kind": tuple(PlanKind),
    "reason": tuple(FailureKind),
    "sort": ("number", "time", "speedup"),
}


def add_pages(app: FastAPI, service: Service) -> None:
    """Mounts pages and static files."""
    app.mount("/static", StaticFiles(directory=STATIC_PATH), name="static")
    app.include_router(_page_routes(service))

    @app.get("/favicon.ico", include_in_schema=False)
    def get_icon() -> FileResponse:
        """What browsers ask for beside a page that names no icon, such as its JSON form."""
        return FileResponse(STATIC_PATH / "icon.svg")


def _page_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["dashboard"], responses=PROBLEM_RESPONSES, default_response_class=Response)

    @router.get("/.json", response_model=JobsPage, include_in_schema=False)
    @router.get("/", response_model=JobsPage)
    def show_jobs(request: Request, cursor: Cursor = None, state: JobState | None = None) -> Response:
        """Targets and jobs, the newest first; as JSON with `Accept: application/json` or at `/.json`."""
        found = service.jobs(cursor=cursor, limit=_JOBS_PER_PAGE, state=state)
        page = JobsPage(
            targets=target_views(service),
            state=state,
            jobs=PageView(items=[JobView.of(job) for job in found.items], next_cursor=found.next_cursor),
        )
        return render(request, "jobs.html", page, states=tuple(JobState))

    # The JSON form is registered first (decorators go upwards): the plain path would take `.json` for a part of the id.
    @router.get("/ui/jobs/{job_id}", response_model=JobPage)
    @router.get("/ui/jobs/{job_id}.json", response_model=JobPage, include_in_schema=False)
    def show_job(
        request: Request,
        job_id: JobId,
        caller: Asker,
        cursor: Cursor = None,
        outcome: OutcomeFilter = None,
        plan_kind: KindFilter = None,
        reason: ReasonFilter = None,
        sort: Sort = "number",
    ) -> Response:
        """A job with plot, finals and trials; as JSON with `Accept: application/json` or `.json` behind the path."""
        chosen = TrialFilterView(outcome=outcome, plan_kind=plan_kind, reason=reason, sort=sort)
        page = _job_page(service, job_id, cursor, chosen)
        return render(
            request,
            "job.html",
            page,
            plot=_plot(page),
            inspections=inspection_table(page.inspected),
            choices=_CHOICES,
            may_change=caller.role.allows(Role.SUBMIT) and caller.owns(page.job.owners),
        )

    @router.get("/ui/batches", response_model=BatchesPage)
    @router.get("/ui/batches.json", response_model=BatchesPage, include_in_schema=False)
    def show_batches(request: Request, cursor: Cursor = None) -> Response:
        """Batches, the newest first; as JSON with `Accept: application/json` or `.json` behind the path."""
        return render(request, "batches.html", batches_page(service, cursor, _JOBS_PER_PAGE))

    @router.get("/ui/batches/{batch_id}", response_model=BatchPage)
    @router.get("/ui/batches/{batch_id}.json", response_model=BatchPage, include_in_schema=False)
    def show_batch(request: Request, batch_id: BatchId, cursor: Cursor = None) -> Response:
        """A batch with its ladders and jobs; as JSON with `Accept: application/json` or `.json` behind the path."""
        return render(request, "batch.html", batch_page(service, batch_id, cursor, _JOBS_PER_PAGE))

    return router


def _job_page(service: Service, job_id: str, cursor: str | None, chosen: TrialFilterView) -> JobPage:
    job = service.job(job_id)
    trials = service.trials(job_id, cursor=cursor, limit=_TRIALS_PER_PAGE, **chosen.model_dump())
    ours = [trial for kind in PlanKind if kind.is_ours and (trial := _fastest(service, job, kind))]
    apart = [_time_us(trial) for trial in ours if trial.candidate.plan_kind.is_apart]
    best = service.best(job_id) if job.state is JobState.SUCCEEDED else None
    inspections = service.inspections(job_id, {row.trial_number for row in best.finals}) if best else []
    return JobPage(
        job=JobDetail.with_trials(
            job, service.forecast_quality(job_id), service.priors(job_id), service.desk.place(job_id)
        ),
        outcome_counts=service.outcome_counts(job_id),
        curve=[
            CurvePoint(trial_number=number, best_us=best_us, library_us=library_us)
            for number, best_us, library_us in service.best_so_far(job_id)
        ],
        two_launches_us=min(apart, default=None),
        reference_us=_reference_us(service, job),
        fastest=min(ours, key=_time_us, default=None),
        best=BestView.of(best, job) if best else None,
        inspected=InspectedFinalist.all_of(best, inspections, job) if best else [],
        filter=chosen,
        trials=trials_view(service, job, trials),
    )


def _fastest(service: Service, job: JobRecord, kind: PlanKind) -> TrialView | None:
    found = service.trials(job.id, cursor=None, limit=1, outcome="measured", plan_kind=kind, sort="time").items
    return TrialView.of(found[0], job) if found else None


def _time_us(trial: TrialView) -> float:
    assert trial.outcome.kind == "measured"
    return trial.outcome.time_us


def _reference_us(service: Service, job: JobRecord) -> float | None:
    """The bound on the job's GPU: a live card of this server, else the catalogue's, else nobody knows."""
    live = {target.id: target.gpu for target, _ in service.targets()}
    try:
        gpu = live.get(job.spec.target_id) or parse_target(job.spec.target_id).gpu
    except InvalidInput:
        return None
    return reference_us(job.spec.workload, gpu)


def _plot(page: JobPage) -> Plot | None:
    curve = [(point.trial_number, point.best_us) for point in page.curve]
    baselines = [
        ("library", "library", page.job.library_us),
        ("two-launches", "two launches", page.two_launches_us),
        ("reference", "data sheet bound", page.reference_us),
    ]
    return draw(curve, page.job.num_trials, page.job.budget.trials, baselines)
