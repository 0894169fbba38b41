"""Patience with a server that restarts, also behind a proxy that answers 502 meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tuner.client.connection.http import PATIENCE_S
from tuner.client.errors import Unreachable

T = TypeVar("T")

#: Seconds between two requests.
_RETRY_S = 1.0


def patiently(request: Callable[[], T]) -> T:
    """The response to a request after a job was followed, repeated for as long as a restart takes.

    Raises:
        Unreachable: the server did not come back.
    """
    began_at = time.monotonic()
    while True:
        try:
            return request()
        except Unreachable:
            if time.monotonic() - began_at > PATIENCE_S:
                raise
        time.sleep(_RETRY_S)
