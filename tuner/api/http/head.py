"""HEAD: the response of GET without the body."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware: runs the route of GET, sends its status and headers, and stops before the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles HEAD; passes anything else on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)
        is_answered = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body"})
                is_answered.set()

        async def hang_up() -> Message:
            """An event stream would never end, so after its head it receives a disconnect."""
            await is_answered.wait()
            return {"type": "http.disconnect"}

        return await self._app({**scope, "method": "GET"}, hang_up, send_head)
