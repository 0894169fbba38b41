"""The short way of `POST /jobs`: what most submissions take, past what routes cost.

A server is asked for hundreds of jobs a second, and the general machinery of routes takes more of the interpreter than
the submission itself. A body that this way cannot read as a job goes on to the route, which says what is wrong.
"""

from __future__ import annotations

import asyncio
import json

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.http.errors import on_tuner_error
from tuner.api.http.session import CALLER
from tuner.core.access.caller import Caller
from tuner.core.trial.records import JobRecord
from tuner.errors import TunerError
from tuner.service import Service
from tuner.service.submission.submissions import Submission
from tuner.wire.requests.requests import TuneRequest
from tuner.wire.responses.job_view import JobView

_MAX_KEY = 255


class ShortSubmission:
    """ASGI middleware right before the routes, behind all guards; the body is whole, as `BodyGuard` hands it on."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Submits, or calls the routes."""
        if scope["type"] != "http" or scope["path"] != "/jobs" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        message = await receive()
        body = _read(message)
        key = Headers(scope=scope).get("idempotency-key")
        if body is None or (key is not None and not 1 <= len(key) <= _MAX_KEY):
            return await self._app(scope, _before(message, receive), send)
        response: Response
        try:
            job, is_new = await submit(self._service, body, scope[CALLER], key)
        except TunerError as error:
            response = await on_tuner_error(Request(scope), error)
        else:
            headers = {"location": f"/jobs/{job.id}"}
            content = JobView.of(job).model_dump_json()
            response = Response(content, 202 if is_new else 200, headers, "application/json")
        return await response(scope, receive, send)


async def submit(service: Service, body: TuneRequest, caller: Caller, key: str | None) -> tuple[JobRecord, bool]:
    """The job for a body, and whether it is new.

    Raises:
        TunerError: as `TuneRequest.to_spec` and `Submissions.submit`.
    """
    submissions = service.submissions
    target_id = submissions.own_target_id
    if body.target is None and target_id is None:  # it may be in the database, for which no other request waits
        target_id = await asyncio.to_thread(submissions.default_target_id)
    asked = Submission(
        spec=body.to_spec(target_id),
        caller=caller,
        terms=body.terms,
        idempotency_key=key,
        body_digest=body.digest if key else "",
        reuse=body.reuse,
    )
    return await asyncio.wrap_future(service.intake.submit(asked))


def _read(message: Message) -> TuneRequest | None:
    """The request in a body, as the route would read it; None where it is none."""
    try:
        return TuneRequest.model_validate(json.loads(message.get("body", b"")))
    except (ValueError, RecursionError):  # of JSON, of its text, of its fields; and of lists in lists in lists
        return None


def _before(message: Message, receive: Receive) -> Receive:
    """A receive that gives `message` first."""
    waiting = [message]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
