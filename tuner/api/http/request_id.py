"""Assigns an id to each request, which is in the response and in all log lines about the request."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.logs import about

HEADER = "X-Request-ID"
#: Valid ids from clients.
_SANE = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class RequestId:
    """ASGI middleware around all routes. It uses the id from the client or a proxy, or creates one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application with the id in the context."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _SANE.fullmatch(given) else secrets.token_hex(8)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        with about(request_id=request_id):
            return await self._app(scope, receive, send_named)
