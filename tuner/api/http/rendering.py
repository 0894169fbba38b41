"""Renders pages: decides whether a page or JSON was requested, and fills Jinja templates, which use only files of this
package."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tuner.api.http.root_path import link_from_outside
from tuner.api.http.session import CALLER, session_of
from tuner.core.units import counted, figure, microseconds, ratio
from tuner.wire.requests.problems import Problem

STATIC_PATH = Path(__file__).parents[1] / "static"

#: The browser loads only this server's files.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
#: The destinations in the navigation of every page.
PLACES = (
    ("/", "Jobs"),
    ("/ui/batches", "Batches"),
    ("/ui/results", "Results"),
    ("/ui/explorer", "Explorer"),
    ("/ui/fleet", "Fleet"),
)
_HEADERS = {"Content-Security-Policy": _POLICY, "Vary": "Accept, Cookie", "Cache-Control": "no-store"}


def clock(value: datetime | None) -> str:
    """`2026-11-21 14:03`, or a dash."""
    return "–" if value is None else f"{value:%Y-%m-%d %H:%M}"


def duration(seconds: float | None) -> str:
    """`40 s`, `12 min`, `3.5 h`, or a dash."""
    if seconds is None:
        return "–"
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def arrows(workload: str) -> str:
    """`4096 → 14336 → 4096`, without a line break between a number and the next arrow."""
    return workload.replace(" -> ", "\u00a0\u2192 ")


def query_of(chosen: BaseModel) -> str:
    """The active filters, as a query string."""
    given = {name: value for name, value in chosen.model_dump().items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


_templates = Environment(
    loader=PackageLoader("tuner.api"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_templates.globals.update(places=PLACES, query_of=query_of)
_templates.filters.update(
    us=microseconds, ratio=ratio, arrows=arrows, clock=clock, duration=duration, figure=figure, zip=zip, counted=counted
)


def wants_page(request: Request) -> bool:
    """Whether a path was requested as a page rather than JSON."""
    path = request.scope["path"]
    if not (path == "/" or path.startswith("/ui/")) or path.endswith(".json"):
        return False
    accept = request.headers.get("accept", "*/*")
    return "text/html" in accept or "application/json" not in accept


def render(request: Request, template: str, page: BaseModel, *, status: int = 200, **context: object) -> Response:
    """The rendered page, or the template's model as JSON."""
    if not wants_page(request):
        return Response(page.model_dump_json(), media_type="application/json", headers={"Vary": "Accept"})

    def following(cursor: str) -> str:
        return _other_query(request.url.include_query_params(cursor=cursor))

    def sorted_by(key: str) -> str:
        return _other_query(request.url.include_query_params(sort=key).remove_query_params("cursor"))

    html = _templates.get_template(template).render(
        page=page,
        json_href=_json_href(request),
        here=request.scope["path"],
        following=following,
        sorted_by=sorted_by,
        query=request.url.query,
        session=session_of(request),
        owner=request.scope[CALLER].owner,
        role=request.scope[CALLER].role,
        **context,
    )
    return HTMLResponse(link_from_outside(html), status, _HEADERS)


def render_error(document: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """A problem as a page."""
    html = _templates.get_template("layout/error.html").render(problem=document, session=None, here="")
    return HTMLResponse(link_from_outside(html), document.status, {**_HEADERS, **(headers or {})})


def render_form(template: str, status: int = 200, **context: object) -> Response:
    """A page that users see without a session."""
    html = _templates.get_template(template).render(session=None, here="", **context)
    return HTMLResponse(link_from_outside(html), status, _HEADERS)


def _other_query(url: URL) -> str:
    """The address of the same page with a different query, below the root path."""
    return f"{url.path}?{url.query}"


def _json_href(request: Request) -> str:
    """The same address with `.json` after the path."""
    query = request.url.query
    return f"{request.scope['path']}.json" + (f"?{query}" if query else "")
