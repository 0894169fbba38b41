"""HEAD: what GET would answer, without the body."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware: runs GET's route, passes its status and headers on, and stops before the body."""

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
            """An event stream would never end: once its head is sent, it is told that the client has gone."""
            await is_answered.wait()
            return {"type": "http.disconnect"}

        return await self._app({**scope, "method": "GET"}, hang_up, send_head)
