"""Waiting for a worker without keeping the service from closing."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The service is closing: leave everything as it is."""


def result_of(future: Future[T], stop: threading.Event) -> T:
    """What a worker answers.

    Raises:
        Stopped: `stop` was set first; closing pulls the workers from under what is in flight.
    """
    while not wait([future], timeout=0.2).done:
        if stop.is_set():
            raise Stopped
    if stop.is_set():
        raise Stopped
    return future.result()
