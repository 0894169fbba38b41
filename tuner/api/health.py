"""Probes."""

from __future__ import annotations

from fastapi import APIRouter

from tuner.api.errors import PROBLEM_RESPONSES
from tuner.service import Service
from tuner.wire.responses import Health, Readiness


def health_routes(service: Service) -> APIRouter:
    """For orchestrators."""
    router = APIRouter(tags=["health"])

    @router.get("/livez", responses={503: PROBLEM_RESPONSES[503]})
    async def get_liveness() -> Health:
        """Whether the process answers and its runners live; 503 means that only a restart helps."""
        service.check_alive()
        return Health()

    @router.get("/readyz", responses={503: PROBLEM_RESPONSES[503]})
    def get_readiness() -> Readiness:
        """Whether the database answers, jobs are being run, and a GPU is fit to measure on."""
        return Readiness(quarantined=service.ready())

    return router
