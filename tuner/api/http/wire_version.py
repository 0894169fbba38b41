"""Adds the version of the wire format to every response, and refuses requests for another version."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner import __version__
from tuner.api.http.errors import problem_response
from tuner.versions import WIRE_HEADER, WIRE_VERSION
from tuner.wire.requests.problems import problem


class WireVersion:
    """ASGI middleware around all routes. A request without the header is accepted."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds with 400 before anything is done, or calls the application."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[WIRE_HEADER] = str(WIRE_VERSION)
            await send(message)

        asked = Headers(scope=scope).get(WIRE_HEADER)
        if asked in (None, str(WIRE_VERSION)):
            return await self._app(scope, receive, send_named)
        detail = (
            f"this service, version {__version__}, speaks version {WIRE_VERSION} of the wire format, "
            f"but the request asks for version {asked!a}; use a client of the service's version"
        )
        return await problem_response(problem(400, detail))(scope, receive, send_named)
