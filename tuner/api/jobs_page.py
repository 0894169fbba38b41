"""The front page: targets, and jobs with where they stand."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tuner.api.jobs import Cursor, Size, Word
from tuner.api.rendering import render
from tuner.api.results import target_views
from tuner.core.trial.job import JobState
from tuner.core.trial.records import JobRecord, Page
from tuner.service import Service
from tuner.service.overview import Place
from tuner.wire.pages import JobFilterView, JobsPage, ListedJob
from tuner.wire.responses import PageView

_JOBS_PER_PAGE = 50


def jobs_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page."""

    @router.get("/.json", response_model=JobsPage, include_in_schema=False)
    @router.get("/", response_model=JobsPage)
    def show_jobs(
        request: Request,
        cursor: Cursor = None,
        state: JobState | None = None,
        target: Word = None,
        owner: Word = None,
        project: Word = None,
        label: Word = None,
        m: Size = None,
        n: Size = None,
        k: Size = None,
    ) -> Response:
        """Targets and jobs, the newest first; as JSON with `Accept: application/json` or at `/.json`."""
        chosen = JobFilterView(
            state=state, target=target, owner=owner, project=project, label=label, m=m, n=n, k=k
        )  # fmt: skip
        filters = chosen.model_dump(exclude={"target"})
        found = service.jobs(cursor=cursor, limit=_JOBS_PER_PAGE, target_id=target, **filters)
        page = JobsPage(
            targets=target_views(service),
            state=state,
            filter=chosen,
            num_open=service.overview.num_open(),
            jobs=PageView(items=listed(service, found), next_cursor=found.next_cursor),
        )
        return render(request, "jobs.html", page, states=tuple(JobState))


def listed(service: Service, found: Page[JobRecord]) -> list[ListedJob]:
    """The jobs of a page, with verdicts and places."""
    verdicts = service.overview.verdicts([job.id for job in found.items])
    places = service.overview.places(found.items)
    nowhere = Place(position=None, eta_s=None)
    return [
        ListedJob.with_standing(job, verdicts.get(job.id), (place.position, place.eta_s))
        for job in found.items
        for place in [places.get(job.id, nowhere)]
    ]
