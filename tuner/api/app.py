"""The application: routes, errors, guard and dashboard around a service."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI

from tuner import __version__
from tuner.api.access.access import AccessGuard
from tuner.api.access.forms import DropEmptyFields
from tuner.api.admin.access_routes import access_routes, describe_access
from tuner.api.admin.routes import admin_routes
from tuner.api.http.ending import AnswerAtTheEnd
from tuner.api.http.errors import add_error_handlers
from tuner.api.http.guard import BodyGuard
from tuner.api.http.head import HeadAsGet
from tuner.api.http.origin import OriginGuard
from tuner.api.http.rates import Rates
from tuner.api.http.request_id import RequestId
from tuner.api.http.root_path import BelowRootPath
from tuner.api.http.security_headers import SecurityHeaders
from tuner.api.http.wire_version import WireVersion
from tuner.api.login.proxied import ProxyLogin
from tuner.api.pages.explorer import explorer_routes
from tuner.api.pages.pages import add_pages
from tuner.api.pages.trial_pages import trial_page_routes
from tuner.api.routes.batches import batch_routes
from tuner.api.routes.events import event_routes
from tuner.api.routes.health import health_routes
from tuner.api.routes.imports import import_routes
from tuner.api.routes.inspections import inspection_routes
from tuner.api.routes.jobs import job_routes
from tuner.api.routes.orders import order_routes
from tuner.api.routes.packs import pack_routes
from tuner.api.routes.results import result_routes
from tuner.api.routes.trials import trial_routes
from tuner.api.routes.webhooks import describe_webhooks
from tuner.service import Service
from tuner.settings import DEFAULT_REQUEST_DEADLINE_S, DEFAULT_REQUESTS_PER_S
from tuner.versions import WIRE_HEADER, WIRE_VERSION

_DESCRIPTION = f"""
Searches fused persistent schedules for pairs of GPU kernels, proves them, measures them against the vendor's library
and returns the winner as an artifact.

Every error is a problem document (RFC 9457, `application/problem+json`); its `errors` name each invalid field, what is
wrong and what would be valid. Figures with `simulated: true` are simulated, not measured on a card.

This is version {WIRE_VERSION} of the wire format; the header `{WIRE_HEADER}` of every answer names it.
"""


def create_app(
    service: Service,
    allowed_hosts: Collection[str] = (),
    request_deadline_s: float = DEFAULT_REQUEST_DEADLINE_S,
    requests_per_s: float = DEFAULT_REQUESTS_PER_S,
    root_path: str = "",
    max_streams: int | None = None,
    login: ProxyLogin | None = None,
) -> FastAPI:
    """The ASGI application around `service`, which the caller starts and closes.

    It accepts the hosts `localhost`, numeric addresses, and the names in `allowed_hosts`. A request body must arrive
    within `request_deadline_s`. A token may send `requests_per_s` requests per second. At most `max_streams` event
    streams may be open at a time. Links start with `root_path`, if a proxy serves the application below a path. `login`
    lists the proxies that may name the user.
    """
    servers = [{"url": root_path}] if root_path else None
    app = FastAPI(
        title="tuner", version=__version__, description=_DESCRIPTION, redoc_url=None, docs_url=None, servers=servers
    )
    rates = Rates(requests_per_s)
    for routes in (
        job_routes,
        batch_routes,
        inspection_routes,
        result_routes,
        pack_routes,
        import_routes,
        health_routes,
        admin_routes,
    ):
        app.include_router(routes(service))
    app.include_router(event_routes(service, max_streams))
    app.include_router(access_routes(service, rates))
    app.include_router(order_routes(service))
    app.include_router(explorer_routes(service))
    app.include_router(trial_routes(service))
    app.include_router(trial_page_routes(service))
    add_pages(app, service)
    describe_webhooks(app)
    describe_access(app)
    add_error_handlers(app)
    app.add_middleware(BodyGuard, deadline_s=request_deadline_s)
    app.add_middleware(HeadAsGet)
    app.add_middleware(DropEmptyFields)
    app.add_middleware(AccessGuard, service=service, rates=rates, login=login)
    app.add_middleware(OriginGuard, allowed_hosts=allowed_hosts)
    app.add_middleware(AnswerAtTheEnd)
    app.add_middleware(WireVersion)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestId)
    if root_path:
        app.add_middleware(BelowRootPath, path=root_path)
    return app
