"""Routes of jobs and their trials."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Header, Path, Query, Response

from tuner.api.access.access import Asker
from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.api.routes.submitting import submit
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.outcome import FailureKind, Metric
from tuner.core.trial.records import JobRecord, Page
from tuner.service import Service
from tuner.wire.requests.given import MAX_SCHEDULES
from tuner.wire.requests.requests import EXAMPLES, TuneRequest
from tuner.wire.responses.job_detail import JobDetail
from tuner.wire.responses.job_view import JobView
from tuner.wire.responses.responses import BestView, PageView, TrialView
from tuner.wire.responses.samples import SamplesView
from tuner.wire.responses.study import StudyQuery, StudyView

TrialNumber = Annotated[int, Path(ge=0, le=2**31 - 1, description="a trial's number within its job")]
JobId = Annotated[str, Path(max_length=100, description="a job's id, e.g. `job-0123456789ab`")]
Cursor = Annotated[str | None, Query(max_length=500, description="`next_cursor` of the previous page")]
Word = Annotated[str | None, Query(max_length=100, description="only those with this value")]
Size = Annotated[int | None, Query(ge=1, lt=2**31, description="only those whose first product has this size")]
Limit = Annotated[int, Query(ge=1, le=500, description="maximum number of items on the page")]
OutcomeFilter = Annotated[Literal["measured", "rejected", "failed"] | None, Query(description="only these outcomes")]
KindFilter = Annotated[PlanKind | None, Query(description="only this plan kind")]
ReasonFilter = Annotated[FailureKind | None, Query(description="only trials that failed for this reason")]
Sort = Annotated[Literal["number", "time", "speedup"], Query(description="for time and speedup, fastest first")]


def default_target_id(service: Service) -> str | None:
    """The default target."""
    return service.submissions.default_target_id()


def trials_view(service: Service, job: JobRecord, page: Page[Trial]) -> PageView[TrialView]:
    """A page of a job's trials, with figures from inspections among their metrics."""
    figures: dict[int, dict[str, Metric]] = {}
    for inspection in service.inspections(job.id, {trial.number for trial in page.items}):
        figures.setdefault(inspection.trial_number, {}).update({figure.tag: figure for figure in inspection.figures})
    items = [TrialView.of(trial, job, figures.get(trial.number, {}).values()) for trial in page.items]
    return PageView(items=items, next_cursor=page.next_cursor)


def study_view(service: Service, job_id: str, cache: int) -> StudyView:
    """A comparison of a job's schedules, with the results so far."""
    job = service.job(job_id)
    trials = service.trials(job_id, limit=MAX_SCHEDULES + 1).items if job.spec.tried else []
    best = service.best(job_id) if job.state is JobState.SUCCEEDED else None
    if best and not job.spec.tried:
        trials = [service.trial(job_id, row.trial_number) for row in best.finals]
    return StudyView.of(job, {trial.candidate: trial for trial in trials}, best, cache)


def job_detail(service: Service, job: JobRecord) -> JobDetail:
    """A job with all its details except its trials."""
    return JobDetail.with_trials(
        job,
        service.forecast_quality(job.id),
        service.priors(job.id),
        service.submissions.place(job.id),
        service.submissions.webhooks(job.id),
    )


def job_routes(service: Service) -> APIRouter:
    """Returns the routes that submit, read, pause and cancel jobs."""
    router = APIRouter(tags=["jobs"], responses=PROBLEM_RESPONSES)

    @router.post(
        "/jobs",
        status_code=202,
        response_model=JobView,
        responses={200: {"model": JobView, "description": "The job existed"}},
    )
    async def submit_job(
        body: Annotated[TuneRequest, Body(openapi_examples=EXAMPLES)],
        caller: Asker,
        idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
    ) -> Response:
        """Submits a kernel pair for tuning. While the same problem is open, the existing job is returned."""
        job, is_new = await submit(service, body, caller, idempotency_key)
        # As bytes, since FastAPI would validate the model again, which is costly at hundreds of submissions per second.
        content, headers = JobView.of(job).model_dump_json(), {"location": f"/jobs/{job.id}"}
        return Response(content, 202 if is_new else 200, headers, "application/json")

    @router.get("/jobs")
    def list_jobs(
        cursor: Cursor = None,
        limit: Limit = 50,
        state: JobState | None = None,
        owner: Word = None,
        project: Word = None,
        label: Word = None,
        target: Word = None,
        m: Size = None,
        n: Size = None,
        k: Size = None,
    ) -> PageView[JobView]:
        """All jobs, newest first; filtered by state, owner, project, label, target and the sizes of the first
        product.
        """
        page = service.jobs(
            cursor=cursor, limit=limit, state=state, owner=owner, project=project, label=label, target_id=target,
            m=m, n=n, k=k,
        )  # fmt: skip
        return PageView(items=[JobView.of(job) for job in page.items], next_cursor=page.next_cursor)

    @router.get("/jobs/{job_id}")
    def get_job(job_id: JobId) -> JobDetail:
        """A job and its state, with the accuracy of its forecasts, the origin of its priors, and its position in the
        queue."""
        return job_detail(service, service.job(job_id))

    @router.delete("/jobs/{job_id}", response_model=JobView, responses={204: {"description": "It is deleted"}})
    def delete_job(job_id: JobId, caller: Asker) -> Response | JobView:
        """Deletes an ended job with its trials, events, result and artifact. If others share its run, it is kept for
        them, and the response is the job without its former owner."""
        left = service.submissions.delete(job_id, caller)
        return Response(status_code=204) if left is None else JobView.of(left)

    @router.post("/jobs/{job_id}:cancel")
    def cancel_job(job_id: JobId, caller: Asker) -> JobView:
        """Cancels a job; its trials are kept. A job that others share continues for them."""
        return JobView.of(service.cancel(job_id, caller))

    @router.post("/jobs/{job_id}:pause")
    def pause_job(job_id: JobId, caller: Asker) -> JobView:
        """Pauses an open job; results from the card are recorded first."""
        return JobView.of(service.submissions.pause(job_id, caller, True))

    @router.post("/jobs/{job_id}:resume")
    def resume_job(job_id: JobId, caller: Asker) -> JobView:
        """Resumes a paused job."""
        return JobView.of(service.submissions.pause(job_id, caller, False))

    @router.post(
        "/jobs/{job_id}:retry", status_code=202, responses={200: {"model": JobView, "description": "The job existed"}}
    )
    def retry_job(job_id: JobId, response: Response, caller: Asker) -> JobView:
        """Submits the problem of a failed or cancelled job again, with the same terms."""
        job, created = service.submissions.retry(job_id, caller)
        response.status_code = 202 if created else 200
        response.headers["location"] = f"/jobs/{job.id}"
        return JobView.of(job)

    @router.get("/jobs/{job_id}/trials")
    def list_trials(
        job_id: JobId,
        cursor: Cursor = None,
        limit: Limit = 100,
        outcome: OutcomeFilter = None,
        plan_kind: KindFilter = None,
        reason: ReasonFilter = None,
        sort: Sort = "number",
    ) -> PageView[TrialView]:
        """A job's trials, filtered and sorted; those without a time come last."""
        job = service.job(job_id)
        page = service.trials(
            job_id, cursor=cursor, limit=limit, outcome=outcome, plan_kind=plan_kind, reason=reason, sort=sort
        )
        return trials_view(service, job, page)

    @router.get("/jobs/{job_id}/trials/{number}/samples")
    def get_samples(job_id: JobId, number: TrialNumber) -> SamplesView:
        """The raw samples of a measured trial, by round; 404 if there are none, or if they were removed."""
        trial, measured = service.samples(job_id, number)
        return SamplesView.of(trial, measured, service.job(job_id))

    @router.get("/jobs/{job_id}/best")
    def get_job_best(job_id: JobId) -> BestView:
        """The result of a succeeded job."""
        return BestView.of(service.best(job_id), service.job(job_id))

    @router.get("/jobs/{job_id}/study")
    def get_study(job_id: JobId, query: Annotated[StudyQuery, Query()]) -> StudyView:
        """A comparison of the schedules of a job, or of its finalists, by times from shared rounds."""
        return study_view(service, job_id, query.cache)

    return router
