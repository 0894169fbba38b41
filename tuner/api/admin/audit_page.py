"""The page of the audit log, for admins."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tuner.api.http.rendering import render
from tuner.api.routes.jobs import Cursor
from tuner.service import Service
from tuner.wire.responses.access import AuditEntryView, AuditPage
from tuner.wire.responses.responses import PageView

_ROWS_PER_PAGE = 100


def audit_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page."""

    @router.get("/ui/audit.json", response_model=AuditPage, include_in_schema=False)
    @router.get("/ui/audit", response_model=AuditPage)
    def show_audit(request: Request, cursor: Cursor = None) -> Response:
        """Who changed what, newest first; as JSON with `Accept: application/json` or `.json` after the path."""
        found = service.access.entries(cursor=cursor, limit=_ROWS_PER_PAGE)
        views = [AuditEntryView.of(entry) for entry in found.items]
        return render(
            request, "admin/audit.html", AuditPage(entries=PageView(items=views, next_cursor=found.next_cursor))
        )
