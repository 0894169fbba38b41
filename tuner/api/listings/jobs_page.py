"""The front page: targets, and jobs with their positions, one row per batch; several jobs can be cancelled at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from tuner.api.access.access import Asker
from tuner.api.access.forms import Form
from tuner.api.http.rendering import render
from tuner.api.routes.jobs import Cursor, Size, Word
from tuner.api.routes.results import target_views
from tuner.core.access.caller import Caller
from tuner.core.trial.job import JobState
from tuner.core.trial.ladders.batch import BatchSummary
from tuner.core.trial.records import JobRecord, Page
from tuner.errors import Conflict, Forbidden, InvalidInput, NotFound
from tuner.service import Service
from tuner.service.queries.overview import Place
from tuner.store.listings.entries import Order
from tuner.wire.pages.pages import JobFilterView, JobsPage, ListedJob
from tuner.wire.responses.responses import PageView

_JOBS_PER_PAGE = 50


def jobs_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page."""

    @router.get("/.json", response_model=JobsPage, include_in_schema=False)
    @router.get("/", response_model=JobsPage)
    def show_jobs(
        request: Request,
        cursor: Cursor = None,
        sort: Order = Order.STANDING,
        state: JobState | None = None,
        target: Word = None,
        owner: Word = None,
        project: Word = None,
        label: Word = None,
        batch: Word = None,
        m: Size = None,
        n: Size = None,
        k: Size = None,
    ) -> Response:
        """Targets and jobs, running ones first; as JSON with `Accept: application/json` or at `/.json`."""
        chosen = JobFilterView(
            state=state, target=target, owner=owner, project=project, label=label, batch=batch, m=m, n=n, k=k
        )  # fmt: skip
        filters = chosen.model_dump(exclude={"target", "batch"})
        order = Order.NEWEST if batch and sort is Order.STANDING else sort
        found = service.overview.entries(cursor, _JOBS_PER_PAGE, order, target_id=target, batch_id=batch, **filters)
        records = Page(
            items=[service.submissions.with_wait(one.job) for one in found.items], next_cursor=found.next_cursor
        )
        batches = {one.job.id: one.batch for one in found.items if one.batch is not None}
        page = JobsPage(
            targets=target_views(service),
            state=state,
            filter=chosen,
            sort=sort,
            num_open=service.overview.num_open(),
            jobs=PageView(items=listed(service, records, batches), next_cursor=found.next_cursor),
        )
        return render(request, "jobs.html", page, states=tuple(JobState))

    @router.post("/ui/cancel", include_in_schema=False)
    async def cancel_several(request: Request, caller: Asker, form: Form) -> Response:
        """Cancels the selected jobs and batches, and shows the same page again."""
        ticked = parse_qs((await request.body()).decode(errors="replace"))
        await to_thread.run_sync(_cancel, service, ticked.get("job", []), ticked.get("batch", []), caller)
        return RedirectResponse(f"/?{form['query']}" if "query" in form else "/", 303)


def _cancel(service: Service, job_ids: Sequence[str], batch_ids: Sequence[str], caller: Caller) -> None:
    """Cancels the selected jobs and batches that the caller may cancel.

    Raises:
        InvalidInput: nothing was selected.
        Conflict: some could not be cancelled; the message says which, and why.
    """
    if not job_ids and not batch_ids:
        raise InvalidInput("job", "nothing was ticked", "select what to cancel, and send the form again")
    refused, num_ended = [], 0
    for ends, ids in ((service.cancel, job_ids), (service.batches.cancel, batch_ids)):
        for one in ids:
            try:
                ends(one, caller)
                num_ended += 1
            except (Conflict, Forbidden, NotFound) as error:
                refused.append(str(error))
    if refused:
        raise Conflict(f"{num_ended} of {num_ended + len(refused)} were cancelled; {'; '.join(refused)}")


_NO_BATCHES: Mapping[str, BatchSummary] = {}


def listed(
    service: Service, found: Page[JobRecord], batches: Mapping[str, BatchSummary] = _NO_BATCHES
) -> list[ListedJob]:
    """A page's jobs with their verdicts and positions; if a row represents a batch, also with that batch."""
    verdicts = service.overview.verdicts([job.id for job in found.items])
    places = service.overview.places(found.items)
    nowhere = Place(position=None, eta_s=None)
    return [
        ListedJob.with_standing(job, verdicts.get(job.id), (place.position, place.eta_s), batches.get(job.id))
        for job in found.items
        for place in [places.get(job.id, nowhere)]
    ]
