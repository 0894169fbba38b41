"""Tracks since when and why a worker's scheduler is lost, and limits how often that is logged."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from contextlib import suppress
from datetime import datetime
from urllib.parse import urlsplit

from distributed.security import Security

log = logging.getLogger(__name__)

#: Time limit for asking the scheduler for the reason, seconds.
_PROBE_S = 5.0
#: The pause between two log lines equals the time waited so far, within these limits.
_MIN_PAUSE_S, _MAX_PAUSE_S = 60.0, 600.0


class Absence:
    """The absence of the scheduler. A worker may start before it and outlive its restarts, so it waits forever."""

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._begin()
        log.info("joining the scheduler %s", scheduler)

    def _begin(self) -> None:
        self._since, self._began_at = datetime.now(), time.monotonic()
        self._silent_until_s = 0.0

    def end(self) -> None:
        """The worker has joined."""
        log.info("joined the scheduler %s, after %.0f s", self._scheduler, time.monotonic() - self._began_at)

    def begin_again(self) -> None:
        """The worker had joined, and the scheduler is lost."""
        self._begin()
        log.warning(
            ("the connection to the scheduler %s was lost; this worker rejoins when the scheduler responds"),
            self._scheduler,
        )

    async def tell(self, security: Security, problem: str) -> None:
        """Logs what it waits for, since when and why, unless that was logged recently.

        Args:
            security: for asking the scheduler for the reason.
            problem: the error from joining; empty if there was no answer in time.
        """
        waited_s = time.monotonic() - self._began_at
        if waited_s < self._silent_until_s:
            return
        self._silent_until_s = waited_s + min(max(waited_s, _MIN_PAUSE_S), _MAX_PAUSE_S)
        log.warning(
            "waiting for the scheduler %s for %.0f s, since %s: %s; this worker joins when the scheduler responds",
            self._scheduler,
            waited_s,
            f"{self._since:%Y-%m-%d %H:%M:%S}",
            problem or await why_silent(self._scheduler, security),
        )


async def why_silent(scheduler: str, security: Security) -> str:
    """The error of connecting to an address, as text."""
    parts = urlsplit(scheduler)
    context = security.get_connection_args("worker").get("ssl_context") if parts.scheme == "tls" else None
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    except TimeoutError:
        return f"no answer within {_PROBE_S:.0f} s"
    except ssl.SSLCertVerificationError as error:
        return f"its certificate was rejected: {error.verify_message}"
    except OSError as error:
        if error.errno is None or isinstance(error, ssl.SSLError | socket.gaierror):
            return error.strerror or str(error)
        return os.strerror(error.errno)
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
    return "a server answers there, but accepts no workers; its log may have the reason"
