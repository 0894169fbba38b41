"""A request that is interrupted by a shutdown gets a response that says so, since it is not an error and can be
retried."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.http.errors import problem_response
from tuner.wire.requests.problems import problem

log = logging.getLogger(__name__)

_RETRY_AFTER_S = 5


class AnswerAtTheEnd:
    """A request that is cancelled before its response has begun gets a 503; uvicorn would send 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on."""
        has_begun = False

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            if has_begun or scope["type"] != "http":
                raise
            log.warning("%s %s was aborted: the server is shutting down", scope["method"], scope["path"])
            document = problem(
                503, ("the server is shutting down, and this request was aborted; send it again after the restart")
            )
            await problem_response(document, {"Retry-After": str(_RETRY_AFTER_S)})(scope, receive, send)
