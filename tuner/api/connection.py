"""HTTP of a connection: one that sends nothing, or very slowly, is not kept for ever, nor is a head without an end."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes of a request's head, and of what stands between two parts of its body, at most.
MAX_HEAD_BYTES = 64 * 1024


class _BadHead(Exception):
    """The parser takes it for an error of the request, and answers 400."""


def protocol_with(deadline_s: float) -> type[HttpToolsProtocol]:
    """The server's protocol, closing a connection on which no request's head is complete after `deadline_s`."""

    class Bounded(HttpToolsProtocol):
        """Between two requests the server's own, shorter limit holds, until the first byte of the next one.

        The parser in C takes a quarter of the time of one in Python. It has no limits of its own, so they are here.
        """

        _timer: asyncio.TimerHandle | None = None
        #: Whether the head that comes is not whole yet, and whether a request was received to its end.
        _awaits_head = True
        _is_received = False
        #: Bytes since the last part of a request that was understood.
        _unread = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Begins to wait for a head."""
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            """Takes bytes, and waits on while they are no whole head."""
            if self.transport.is_closing():
                return
            if self._is_received:
                self._is_received, self._awaits_head = False, True
            self._unread += len(data)
            super().data_received(data)
            if self._unread > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"the head is larger than {MAX_HEAD_BYTES} bytes")
            self._watch()

        def on_message_begin(self) -> None:
            """A request begins, maybe right behind another one."""
            super().on_message_begin()
            self._is_received, self._awaits_head = False, True

        def on_header(self, name: bytes, value: bytes) -> None:
            """A line of the head. What stands behind a body in chunks has the same form, and is not of the head: no
            proxy has looked at it."""
            if self._awaits_head:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            """The head is whole. Its host is checked by the name, so there must be one name."""
            num_hosts = sum(name == b"host" for name, _ in self.headers)
            if num_hosts != 1 and not (num_hosts == 0 and self.parser.get_http_version() == "1.0"):
                raise _BadHead
            if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > MAX_HEAD_BYTES:
                raise _BadHead
            self._awaits_head, self._unread = False, 0
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            """A part of the body."""
            self._unread = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            """The request is whole."""
            self._is_received, self._unread = True, 0
            super().on_message_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            """Waits no more."""
            self._unwatch()
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
