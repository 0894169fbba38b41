"""Probes, and figures for monitoring."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from tuner.api.http.errors import BASE_RESPONSES, PROBLEM_RESPONSES
from tuner.service import Service
from tuner.service.metrics import CONTENT_TYPE
from tuner.wire.responses.health import Health, Readiness

_FIGURES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Figures for Prometheus", "content": {"text/plain": {"schema": {"type": "string"}}}},
    **{status: PROBLEM_RESPONSES[status] for status in (401, 429)},
}


def health_routes(service: Service) -> APIRouter:
    """Returns the routes for orchestrators and monitoring."""
    router = APIRouter(tags=["health"], responses=BASE_RESPONSES)

    @router.get("/livez", responses={503: PROBLEM_RESPONSES[503]})
    async def get_liveness() -> Health:
        """Whether the process responds and its runners work; after a 503, only a restart helps."""
        service.check_alive()
        return Health()

    @router.get("/readyz", responses={503: PROBLEM_RESPONSES[503]})
    def get_readiness() -> Readiness:
        """Whether the database responds, jobs run, and a GPU is available."""
        return Readiness(quarantined=service.ready())

    @router.get(
        "/metrics",
        response_class=Response,
        responses=_FIGURES,
    )
    def get_metrics() -> Response:
        """Figures for Prometheus: jobs, trials, stages, cards."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    return router
