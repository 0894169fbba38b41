"""Routes of what was found elsewhere."""

from __future__ import annotations

from fastapi import APIRouter

from tuner.api.access.access import Asker
from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.service import Service
from tuner.wire.requests.imports import ImportRequest, ImportView


def import_routes(service: Service) -> APIRouter:
    """What later jobs may begin with."""
    router = APIRouter(tags=["imports"], responses=PROBLEM_RESPONSES)

    @router.post("/imports", status_code=201)
    def import_winners(body: ImportRequest, caller: Asker) -> ImportView:
        """Keeps winners of a search elsewhere: jobs on that target may begin with them. They never answer for it."""
        found = body.to_found()
        num_new = service.import_winners(body.target, found, caller)
        return ImportView(num_imported=num_new, num_known=len(found) - num_new)

    return router
