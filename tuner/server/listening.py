"""The listening socket, and the maximum number of connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

from tuner.errors import TunerError

_log = logging.getLogger(__name__)

#: Connections in the kernel's queue, and those accepted at a time; a flood must not use up the descriptors before the
#: oldest connections are closed.
_QUEUE, TAKEN_AT_ONCE = 1024, 32
#: Descriptors for everything else: the database, files, pipes to other processes. If there are few descriptors, a third
#: of them.
_FOR_OTHERS = 200
#: Minimum seconds between two log lines about the same problem of the event loop.
_QUIET_S = 60.0


class ListenError(TunerError):
    """Listening on the address failed; the message says why."""


class _Listener(socket.socket):
    """Has a long queue, although few connections are accepted at a time."""

    def listen(self, backlog: int = _QUEUE, /) -> None:
        """Begins to listen."""
        super().listen(max(backlog, _QUEUE))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, bound before anything else is opened, so that a used port is reported immediately.

    Raises:
        ListenError: host and port cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be given, since only then asyncio disables Nagle's algorithm, which costs 40 ms per response.
    listener = _Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        other = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror}; choose another {other}") from error
    return listener


def connections_that_fit(wanted: int) -> int:
    """The maximum number of connections: as requested, or as the process's descriptors allow. Their limit is raised
    as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _FOR_OTHERS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    fitting = max(1, soft - min(_FOR_OTHERS, soft // 3))
    if fitting < wanted:
        _log.warning(
            ("at most %d connections are kept, not %d: this process has %d file descriptors (ulimit -n)"),
            fitting,
            wanted,
            soft,
        )
    return min(wanted, fitting)


def streams_beside_requests(connections: int) -> int:
    """How many of these connections may be event streams; one eighth is reserved for requests."""
    return max(1, connections - max(1, connections // 8))


def quietly(clock: Callable[[], float] = time.monotonic) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """A handler for errors of an event loop: the first of a kind is logged, and later the number of repetitions."""
    seen: dict[str, tuple[float, int]] = {}

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        kind = f"{context.get('message')} {type(error).__name__} {getattr(error, 'errno', '')}"
        at, num_quiet = seen.get(kind, (float("-inf"), 0))
        if (now := clock()) - at < _QUIET_S:
            seen[kind] = at, num_quiet + 1
            return
        seen[kind] = now, 0
        more = f" ({num_quiet} more since the last such line)" if num_quiet else ""
        trace = None if isinstance(error, OSError) else error
        _log.error("%s: %s%s", context.get("message"), error, more, exc_info=trace)

    return handle
