"""Refuses a body that is too large, of another type, or ambiguous, before it is parsed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.http.errors import problem_response
from tuner.errors import InvalidInput
from tuner.wire.requests.problems import of_invalid_input, problem
from tuner.wire.requests.repeated import repeated_field

MAX_BODY_BYTES = 2**20

#: Paths of forms, and a folder of such paths.
_FORM_PATHS = ("/login", "/logout")
_FORM_FOLDER = "/ui/"
_FORM = "application/x-www-form-urlencoded"

#: How long the rest of a refused body is read and dropped, so that the sender can read the reason, seconds.
_LINGER_S = 1.0


def takes_form(path: str) -> bool:
    """Whether the path receives forms; otherwise bodies are JSON."""
    return path in _FORM_PATHS or path.startswith(_FORM_FOLDER)


class BodyGuard:
    """ASGI middleware: reads a body of at most `MAX_BODY_BYTES`, and passes it on in one message."""

    def __init__(self, app: ASGIApp, deadline_s: float) -> None:
        self._app = app
        self._deadline_s = deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds with 408, 413, 415 or 422, or calls the application."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        try:
            async with asyncio.timeout(self._deadline_s):
                body = None if length.isdigit() and int(length) > MAX_BODY_BYTES else await _read(receive)
        except TimeoutError:
            detail = f"the body did not arrive within {self._deadline_s:g} s; send it without pauses"
            return await _refuse(408, detail, scope, receive, send)
        if body is None:
            detail = f"the body is larger than {MAX_BODY_BYTES} bytes; a normal request has a few hundred"
            return await _refuse(413, detail, scope, receive, send)
        media_type = _FORM if takes_form(scope["path"]) else "application/json"
        if body and headers.get("content-type", "").partition(";")[0].strip().lower() != media_type:
            detail = f"the content type is {headers.get('content-type', 'absent')!a}; send `{media_type}`"
            return await _refuse(415, detail, scope, receive, send)
        if body and (encoding := headers.get("content-encoding", "identity").strip().lower()) != "identity":
            return await _refuse(415, f"the body is encoded: {encoding!a}; send it unencoded", scope, receive, send)
        if media_type != _FORM and (field := repeated_field(body)) is not None:
            twice = InvalidInput(field, "is given twice in one object", "keep one of the two values")
            return await problem_response(problem(422, str(twice), [of_invalid_input(twice)]))(scope, receive, send)
        return await self._app(scope, _replay([{"type": "http.request", "body": body}], receive), send)


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or None as soon as it is too large."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        more = message.get("more_body", False)
    return bytes(body)


def _replay(messages: Iterable[Message], receive: Receive) -> Receive:
    """A receive function that returns `messages` first."""
    waiting = iter(messages)

    async def replay() -> Message:
        return next(waiting, None) or await receive()

    return replay


async def _refuse(status: int, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    await refuse(problem_response(problem(status, detail), {"connection": "close"}), scope, receive, send)


async def refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the response, then waits: closing a socket with unread bytes would reset it and lose the response."""

    async def send_but_keep_open(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    await response(scope, receive, send_but_keep_open)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass
    await send({"type": "http.response.body"})
