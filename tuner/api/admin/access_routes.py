"""Routes for the caller's identity and the audit log; also adds authentication to the API docs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI

from tuner.api.access.access import role_for
from tuner.api.access.login_form import add_login
from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.api.http.rates import Rates
from tuner.api.http.session import COOKIE
from tuner.api.routes.jobs import Cursor, Limit
from tuner.service import Service
from tuner.wire.responses.access import AuditEntryView
from tuner.wire.responses.responses import PageView


def access_routes(service: Service, rates: Rates) -> APIRouter:
    """Returns the routes for the caller's identity and the audit log."""
    router = APIRouter(tags=["access"], responses=PROBLEM_RESPONSES)
    add_login(router, service, rates)

    @router.get("/audit")
    def list_audit(cursor: Cursor = None, limit: Limit = 100) -> PageView[AuditEntryView]:
        """Who changed what, and when, newest first; for admins."""
        page = service.access.entries(cursor=cursor, limit=limit)
        return PageView(items=[AuditEntryView.of(entry) for entry in page.items], next_cursor=page.next_cursor)

    return router


def describe_access(app: FastAPI) -> None:
    """Adds the two ways to authenticate to the API docs, and which routes need one of them."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            schema.setdefault("components", {})["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            }
            for path, methods in schema["paths"].items():
                for method, route in methods.items():
                    needs_one = role_for(method.upper(), path) is not None
                    # The empty requirement is one of the alternatives, since a service may have no tokens.
                    route["security"] = [{"token": []}, {"session": []}, {}] if needs_one else []
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
