"""The dashboard: server-rendered pages, each also available as JSON at its path with `.json`."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from tuner.api.admin.access_page import access_page_routes
from tuner.api.admin.audit_page import audit_page_routes
from tuner.api.fleet.fleet_page import fleet_page_routes
from tuner.api.http.errors import PAGE_RESPONSES
from tuner.api.http.rendering import STATIC_PATH
from tuner.api.listings.batch_pages import batch_page_routes
from tuner.api.listings.jobs_page import jobs_page_routes
from tuner.api.listings.results_page import results_page_routes
from tuner.api.pages.compare_page import compare_page_routes
from tuner.api.pages.explorer_jobs import explorer_job_routes
from tuner.api.pages.job_actions import job_action_routes
from tuner.api.pages.job_pages import job_page_routes
from tuner.api.pages.study_page import study_page_routes
from tuner.api.pages.submit_page import submit_page_routes
from tuner.service import Service

_ROUTES = (
    jobs_page_routes,
    submit_page_routes,
    compare_page_routes,
    results_page_routes,
    fleet_page_routes,
    audit_page_routes,
    access_page_routes,
    study_page_routes,
    explorer_job_routes,
    job_page_routes,
    batch_page_routes,
    job_action_routes,
)


def add_pages(app: FastAPI, service: Service) -> None:
    """Mounts pages and static files."""
    app.mount("/static", StaticFiles(directory=STATIC_PATH), name="static")
    router = APIRouter(tags=["dashboard"], responses=PAGE_RESPONSES, default_response_class=Response)
    for add_routes in _ROUTES:
        add_routes(router, service)
    app.include_router(router)

    @app.get("/favicon.ico", include_in_schema=False)
    def get_icon() -> FileResponse:
        """The icon that browsers request for documents that declare none, such as JSON."""
        return FileResponse(STATIC_PATH / "icon.svg")
