"""Every error is returned as a problem document, or as a page if a page was requested."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from tuner.api.http.rendering import render_error, wants_page
from tuner.core.problem.op_kinds import culprit
from tuner.errors import Conflict, Forbidden, InvalidInput, NotFound, StoreError, TunerError, WorkerError
from tuner.wire.requests.problems import MEDIA_TYPE, Problem, of_invalid_input, of_validation, problem

log = logging.getLogger(__name__)

#: HTTP status of each exception; a subclass inherits its parent's. Other exceptions are internal errors.
STATUS: dict[type[TunerError], int] = {
    InvalidInput: 422,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    StoreError: 503,
    WorkerError: 503,
    TunerError: 500,
}


def _problem_schema() -> dict[str, Any]:
    """JSON schema of a problem document without references, which would point outside the description of a route."""
    schema = Problem.model_json_schema()
    schema["properties"]["errors"]["items"] = schema.pop("$defs")["FieldProblem"]
    return schema


#: For OpenAPI: error responses that any route may return.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {MEDIA_TYPE: {"schema": _problem_schema()}}}
    for status, description in {
        400: "The body is not JSON, or the request names a different version of the wire format",
        401: "A token is needed, but it is missing, unknown, expired or revoked",
        403: "The token does not allow this, the request names another host, or a page of another site sent it",
        404: "The named resource does not exist",
        405: "The path does not support the method; `Allow` lists those that it supports",
        408: "The body did not arrive in time",
        409: "The resource's state does not allow the request",
        413: "The body is too large",
        415: "The content type of the body is not `application/json`, or the body is compressed",
        422: "A field is invalid; the document says which, why, and what would be valid",
        429: "The token or the address sends too many requests; `Retry-After` says when to retry",
        503: "The database or the worker is not available",
    }.items()
}

_HTML: dict[str, Any] = {"text/html": {"schema": {"type": "string"}}}

#: The same for pages.
PAGE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": _HTML},
    **{status: {**one, "content": {**one["content"], **_HTML}} for status, one in PROBLEM_RESPONSES.items()},
}

#: Error responses of routes without input.
BASE_RESPONSES: dict[int | str, dict[str, Any]] = {status: PROBLEM_RESPONSES[status] for status in (400, 403, 405)}

_REMEDIES = {
    404: "there is nothing at this path; GET / lists the pages, GET /openapi.json the routes",
    405: "this path does not support the method {method}; it supports {allowed}",
}


def problem_response(document: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The document as a response."""
    return Response(json.dumps(document.model_dump()), document.status, headers, MEDIA_TYPE)


def store_problem(error: StoreError) -> Response:
    """The response that a middleware sends if the database does not respond."""
    return problem_response(problem(STATUS[StoreError], str(error)))


def add_error_handlers(app: FastAPI) -> None:
    """Registers a response for each exception."""
    app.add_exception_handler(TunerError, on_tuner_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_fault)


def _answer(request: Request, document: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return render_error(document, headers) if wants_page(request) else problem_response(document, headers)


async def on_tuner_error(request: Request, error: Exception) -> Response:
    """The response for one of our exceptions."""
    status = next(STATUS[parent] for parent in type(error).__mro__ if parent in STATUS)
    if status >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error)
    errors = [of_invalid_input(error)] if isinstance(error, InvalidInput) else []
    return _answer(request, problem(status, str(error), errors))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return _answer(request, problem(400, f"the body is not valid JSON: {found[0]['ctx']['error']}"))
    errors = [*dict.fromkeys(map(of_validation, found))]  # each type of a union repeats the error
    detail = "; ".join(f"{one.field}: {one.problem}; {one.remedy}" for one in errors)
    return _answer(request, problem(422, detail, errors))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = _allowed(request)
    detail = _REMEDIES.get(error.status_code, error.detail).format(method=request.method, allowed=allowed)
    if error.status_code == 400 and error.__cause__ is not None:  # FastAPI could not parse the body
        detail = _unreadable(error.__cause__)
    headers = {"Allow": allowed} if error.status_code == 405 else error.headers
    return _answer(request, problem(error.status_code, detail), headers)


def _unreadable(error: BaseException) -> str:
    """Why a body that may be JSON cannot be read, and the remedy."""
    if isinstance(error, UnicodeDecodeError):
        return f"the body is not {error.encoding.upper()} at byte {error.start}; send it as UTF-8"
    if isinstance(error, RecursionError):
        return "the body is nested too deeply; GET /openapi.json describes every body"
    return "the body has a number with too many digits; shorten it"


def _allowed(request: Request) -> str:
    """The methods that any route for this path supports; HEAD works wherever GET does."""
    known = [
        method
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]
    return ", ".join(sorted([*known, "HEAD"] if "GET" in known else known))


async def _on_fault(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after the response, so uvicorn closes the connection; a header tells the
    client."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    document = problem(500, f"an error in {culprit(error, 'this server')}; see the server's log")
    return _answer(request, document, {"connection": "close"})
