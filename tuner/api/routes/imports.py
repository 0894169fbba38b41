"""Routes for results of external searches."""

from __future__ import annotations

from fastapi import APIRouter

from tuner.api.access.access import Asker
from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.service import Service
from tuner.wire.requests.imports import ImportRequest, ImportView


def import_routes(service: Service) -> APIRouter:
    """Returns the route that stores results from which later jobs may start."""
    router = APIRouter(tags=["imports"], responses=PROBLEM_RESPONSES)

    @router.post("/imports", status_code=201)
    def import_winners(body: ImportRequest, caller: Asker) -> ImportView:
        """Stores winners of an external search, which later jobs on that target may use as priors. They are never the
        result of a job."""
        found = body.to_found()
        num_new = service.import_winners(body.target, found, caller)
        return ImportView(num_imported=num_new, num_known=len(found) - num_new)

    return router
