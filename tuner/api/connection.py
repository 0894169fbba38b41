"""Connections that send nothing, or very slowly, are not kept for ever."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def protocol_with(deadline_s: float) -> type[H11Protocol]:
    """The server's protocol, closing a connection on which no request's head is complete after `deadline_s`."""

    class Bounded(H11Protocol):
        """Between two requests the server's own, shorter limit holds, until the first byte of the next one."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Begins to wait for a head."""
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            """Takes bytes, and waits on while they are no whole head."""
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            """Waits no more."""
            self._unwatch()
            super().connection_lost(exc)

        def _watch(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self._unwatch()
            elif self._timer is None:
                self._timer = self.loop.call_later(deadline_s, self.transport.close)

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Bounded
