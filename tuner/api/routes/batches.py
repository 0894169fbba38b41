"""Routes of batches: jobs submitted together, and which kernel runs for which rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Body, Header, Path, Response

from tuner.api.access.access import Asker
from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.api.routes.jobs import Cursor, Limit, Word, default_target_id
from tuner.core.trial.ladders.batch import BatchRecord, batch_name
from tuner.errors import NotFound
from tuner.service import Service
from tuner.wire.requests.batches import EXAMPLES, BatchRequest
from tuner.wire.responses.batches import (
    BatchBestView,
    BatchesPage,
    BatchJobView,
    BatchPage,
    BatchRemains,
    BatchView,
    LadderView,
)
from tuner.wire.responses.responses import PageView

BatchId = Annotated[str, Path(max_length=100, description="a batch's id, e.g. `batch-0123456789ab`")]


def batch_routes(service: Service) -> APIRouter:
    """Returns the routes that submit, read, pause and cancel batches."""
    router = APIRouter(tags=["batches"], responses=PROBLEM_RESPONSES)

    @router.post("/batches", status_code=202, responses={200: {"model": BatchView, "description": "The batch existed"}})
    def submit_batch(
        body: Annotated[BatchRequest, Body(openapi_examples=EXAMPLES)],
        response: Response,
        caller: Asker,
        idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
    ) -> BatchView:
        """Submits several jobs at once; those with the same shape share their results, which form a ladder."""
        batch, created = service.batches.submit(
            body.to_specs(default_target_id(service)),
            neighbour_trials=body.neighbour_trials,
            reuse=body.reuse,
            caller=caller,
            terms=body.terms,
            idempotency_key=idempotency_key,
            body_digest=body.digest,
        )
        response.status_code = 202 if created else 200
        response.headers["location"] = f"/batches/{batch.id}"
        return _view(service, batch)

    @router.get("/batches")
    def list_batches(
        cursor: Cursor = None, limit: Limit = 50, owner: Word = None, project: Word = None
    ) -> PageView[BatchView]:
        """All batches, newest first."""
        return batches_page(service, cursor, limit, owner, project).batches

    @router.get("/batches/{batch_id}")
    def get_batch(batch_id: BatchId) -> BatchView:
        """A batch and its state."""
        return _view(service, service.batches.get(batch_id))

    @router.post("/batches/{batch_id}:cancel")
    def cancel_batch(batch_id: BatchId, caller: Asker) -> BatchView:
        """Cancels a batch, and its jobs without other owners; their trials are kept."""
        return _view(service, service.batches.cancel(batch_id, caller))

    @router.post("/batches/{batch_id}:pause")
    def pause_batch(batch_id: BatchId, caller: Asker) -> BatchView:
        """Pauses its open jobs; results from the card are recorded first. Jobs that others share continue."""
        return _view(service, service.batches.pause(batch_id, caller, True))

    @router.post("/batches/{batch_id}:resume")
    def resume_batch(batch_id: BatchId, caller: Asker) -> BatchView:
        """Resumes its open jobs."""
        return _view(service, service.batches.pause(batch_id, caller, False))

    @router.delete("/batches/{batch_id}", response_model=BatchRemains)
    def delete_batch(batch_id: BatchId, caller: Asker) -> BatchRemains:
        """Deletes an ended batch, and its jobs that neither other requests nor other owners need."""
        return BatchRemains(id=batch_id, kept=service.batches.delete(batch_id, caller))

    @router.get("/batches/{batch_id}/jobs")
    def list_batch_jobs(batch_id: BatchId, cursor: Cursor = None, limit: Limit = 50) -> PageView[BatchJobView]:
        """The jobs of a batch, in search order."""
        return _jobs(service, batch_id, cursor, limit)

    @router.get("/batches/{batch_id}/best")
    def get_batch_best(batch_id: BatchId) -> BatchBestView:
        """Which kernel runs for which rows, or the library; 404 before the first ladder has a result."""
        ladders = service.batches.ladders(batch_id)
        workloads = service.batches.workloads(batch_id)
        return BatchBestView.of(service.batches.get(batch_id), ladders, workloads)

    return router


def batches_page(
    service: Service, cursor: str | None, limit: int, owner: str | None = None, project: str | None = None
) -> BatchesPage:
    """A page of all batches."""
    found = service.batches.page(cursor, limit, owner, project)
    return BatchesPage(batches=PageView(items=_views(service, found.items), next_cursor=found.next_cursor))


def batch_page(service: Service, batch_id: str, cursor: str | None, limit: int) -> BatchPage:
    """A batch with all details."""
    batch = service.batches.get(batch_id)
    try:
        found = service.batches.ladders(batch_id)
    except NotFound:
        found = {}
    workloads = service.batches.workloads(batch_id) if found else {}
    return BatchPage(
        batch=_view(service, batch),
        ladders=[LadderView.of(number, one, workloads, batch.target_id) for number, one in found.items()],
        jobs=_jobs(service, batch_id, cursor, limit),
    )


def _view(service: Service, batch: BatchRecord) -> BatchView:
    return _views(service, [batch])[0]


def _views(service: Service, found: Sequence[BatchRecord]) -> list[BatchView]:
    """The batches of `found` with their workloads, gains and positions in the queue."""
    facts = service.batches.facts([batch.id for batch in found])
    places = service.overview.places([one.next_open for one in facts.values() if one.next_open is not None])
    views = []
    for batch in found:
        one = facts.get(batch.id)
        place = places.get(one.next_open.id) if one is not None and one.next_open is not None else None
        views.append(
            BatchView.of(
                batch,
                service.fleet.num_fit(batch.target_id),
                name=batch_name(one.first.spec.workload, one.rows, batch.num_ladders) if one else batch.id,
                labels=one.first.labels if one else (),
                speedups=one.speedups if one else None,
                queue_position=place.position if place else None,
            )
        )
    return views


def _jobs(service: Service, batch_id: str, cursor: str | None, limit: int) -> PageView[BatchJobView]:
    page = service.batches.jobs(batch_id, cursor, limit)
    return PageView(items=[BatchJobView.of(job, ladder) for job, ladder in page.items], next_cursor=page.next_cursor)
