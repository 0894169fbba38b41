"""HTTP connections: closes those that are slow or silent, or whose request head never ends."""

from __future__ import annotations

import asyncio
from itertools import chain

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Maximum number of bytes in a request's head, and between two chunks of its body.
MAX_HEAD_BYTES = 64 * 1024


class _BadHead(Exception):
    """The parser treats it as a malformed request, and responds with 400."""


def protocol_with(deadline_s: float, most: int | None = None) -> type[HttpToolsProtocol]:
    """The server's protocol. It closes a connection if the head of a request is incomplete after `deadline_s`, or if
    the peer has received no data for that long. Once there are `most` connections, a new one replaces the oldest that
    never sent a request, or otherwise the one idle for longest, so that silent connections cannot block others."""

    #: Connections that have not sent a request yet, and connections that are idle; both longest idle first.
    silent: dict[Bounded, None] = {}
    idle: dict[Bounded, None] = {}

    class Bounded(HttpToolsProtocol):
        """Between two requests, the server's shorter limit applies until the first byte of the next request.

        The C parser takes a quarter of the time of a Python parser, but has no limits, so they are enforced here.
        """

        _timer: asyncio.TimerHandle | None = None
        #: The timer that runs while the peer does not receive data.
        _stalled: asyncio.TimerHandle | None = None
        #: Whether the current head is incomplete, and whether a request was received completely.
        _awaits_head = True
        _is_received = False
        #: Bytes since the last parsed part of a request.
        _unread = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Starts the deadline for a head."""
            super().connection_made(transport)
            silent[self] = None
            if most is not None and len(self.connections) > most:
                self._make_room()
            self._watch()

        def _make_room(self) -> None:
            """Closes the connection that has been idle for longest. If all others are active, this one stays until the
            next one arrives, and then gets an error response."""
            longest = next((other for other in chain(silent, idle) if other is not self), None)
            if longest is not None:
                longest._is_at_work()
                longest.connections.discard(longest)
                longest.transport.abort()

        def _is_at_work(self) -> None:
            silent.pop(self, None)
            idle.pop(self, None)

        def pause_writing(self) -> None:
            """The peer is too slow: after the deadline, the data is dropped."""
            super().pause_writing()
            self._stalled = self.loop.call_later(deadline_s, self.transport.abort)

        def resume_writing(self) -> None:
            """The peer receives data again."""
            super().resume_writing()
            self._flows()

        def _flows(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def data_received(self, data: bytes) -> None:
            """Receives bytes; the deadline runs until the head is complete."""
            if self.transport.is_closing():
                return
            if self._is_received:
                self._is_received, self._awaits_head = False, True
            self._unread += len(data)
            super().data_received(data)
            if self._unread > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"the request headers are larger than {MAX_HEAD_BYTES} bytes")
            self._watch()

        def on_message_begin(self) -> None:
            """A request begins, possibly right after another one."""
            super().on_message_begin()
            self._is_received, self._awaits_head = False, True

        def on_header(self, name: bytes, value: bytes) -> None:
            """A header line has arrived. The trailer of a chunked body has the same form, but is not part of the head,
            and no proxy has checked it."""
            if self._awaits_head:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            """The head is complete. The host is checked by name, so there must be exactly one."""
            num_hosts = sum(name == b"host" for name, _ in self.headers)
            if num_hosts != 1 and not (num_hosts == 0 and self.parser.get_http_version() == "1.0"):
                raise _BadHead
            if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > MAX_HEAD_BYTES:
                raise _BadHead
            self._awaits_head, self._unread = False, 0
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            """A part of the body has arrived."""
            self._unread = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            """The request is complete."""
            self._is_received, self._unread = True, 0
            self._is_at_work()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            """The response is complete; another request may follow."""
            super().on_response_complete()
            if self.cycle.response_complete and not self.transport.is_closing():
                idle[self] = None

        def connection_lost(self, exc: Exception | None) -> None:
            """Stops the timers."""
            self._unwatch()
            self._flows()
            self._is_at_work()
            super().connection_lost(exc)

        def _watch(self) -> None:
            if not self._awaits_head:
                self._unwatch()
            elif self._timer is None:
                self._timer = self.loop.call_later(deadline_s, self.transport.close)

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Bounded
