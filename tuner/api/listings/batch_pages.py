"""The pages of batches: the list, and a batch with its ladders and jobs."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from tuner.api.access.access import Asker
from tuner.api.access.forms import Form
from tuner.api.http.rendering import render
from tuner.api.pictures.ladder import draw_ladder
from tuner.api.routes.batches import BatchId, batch_page, batches_page
from tuner.api.routes.jobs import Cursor
from tuner.service import Service
from tuner.wire.responses.batches import BatchesPage, BatchPage

_ROWS_PER_PAGE = 50


def batch_page_routes(router: APIRouter, service: Service) -> None:
    """Adds both pages."""

    @router.get("/ui/batches.json", response_model=BatchesPage, include_in_schema=False)
    @router.get("/ui/batches", response_model=BatchesPage)
    def show_batches(request: Request, cursor: Cursor = None) -> Response:
        """Batches, newest first; as JSON with `Accept: application/json` or `.json` after the path."""
        return render(request, "batches.html", batches_page(service, cursor, _ROWS_PER_PAGE))

    @router.get("/ui/batches/{batch_id}", response_model=BatchPage)
    @router.get("/ui/batches/{batch_id}.json", response_model=BatchPage, include_in_schema=False)
    def show_batch(request: Request, batch_id: BatchId, cursor: Cursor = None) -> Response:
        """A batch with its ladders and jobs; as JSON with `Accept: application/json` or `.json` after the path."""
        page = batch_page(service, batch_id, cursor, _ROWS_PER_PAGE)
        return render(request, "batch.html", page, curves=[draw_ladder(ladder) for ladder in page.ladders])

    @router.post("/ui/batches/{batch_id}/{verb}", include_in_schema=False)
    def act(batch_id: BatchId, verb: Literal["cancel", "pause", "resume"], caller: Asker, form: Form) -> Response:
        """Performs the action, and shows the batch."""
        if verb == "cancel":
            service.batches.cancel(batch_id, caller)
        else:
            service.batches.pause(batch_id, caller, verb == "pause")
        return RedirectResponse(f"/ui/batches/{batch_id}", 303)
