"""Routes of packs: one file with the kernels of many shapes, made from finished jobs."""

from __future__ import annotations

from fastapi import APIRouter, Response

from tuner.api.access.access import Asker
from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.api.routes.jobs import default_target_id
from tuner.service import Service
from tuner.wire.responses.packs import PackRequest, PackView


def pack_routes(service: Service) -> APIRouter:
    """Returns the route that makes packs for build systems."""
    router = APIRouter(tags=["packs"], responses=PROBLEM_RESPONSES)

    @router.post("/packs", status_code=201)
    def make_pack(body: PackRequest, response: Response, caller: Asker) -> PackView:
        """Makes a signed pack of the best results at each m; equal results give equal bytes."""
        made = PackView.of(service.make_pack(body.to_order(default_target_id(service)), caller))
        response.headers["location"] = made.href
        return made

    return router
