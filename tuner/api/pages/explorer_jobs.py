"""The explorer's order as a schedule file and as a job."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from tuner.api.access.access import Asker
from tuner.api.access.forms import Form
from tuner.api.pages.submit_page import submit_body
from tuner.api.routes.jobs import default_target_id
from tuner.errors import InvalidInput
from tuner.service import Service
from tuner.wire.pages.drawn import DrawnQuery, drawn_body, drawn_file
from tuner.wire.requests.problems import of_validation


def explorer_job_routes(router: APIRouter, service: Service) -> None:
    """Adds both routes."""

    @router.get("/ui/explorer/schedule", include_in_schema=False)
    def fetch_schedule(query: Annotated[DrawnQuery, Query()]) -> Response:
        """The order as a schedule file for `tuner prove` and `submit --schedule`."""
        content = json.dumps(drawn_file(query, default_target_id(service)), indent=1) + "\n"
        headers = {"Content-Disposition": 'attachment; filename="order.json"'}
        return Response(content, media_type="application/json", headers=headers)

    @router.post("/ui/explorer/jobs", include_in_schema=False)
    def try_order(request: Request, caller: Asker, form: Form) -> Response:
        """Submits a job that compares the order with row order, for the same kernel, and redirects to its study."""
        try:
            query = DrawnQuery.model_validate(form)
        except ValidationError as error:
            first = of_validation(error.errors()[0])
            raise InvalidInput(first.field, first.problem, first.remedy) from error
        page = submit_body(service, drawn_body(query, default_target_id(service)), caller)
        return RedirectResponse(page.replace("/ui/jobs/", "/ui/studies/"), 303)
