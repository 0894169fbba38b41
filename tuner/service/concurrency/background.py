"""Work that a runner does for its target besides searching: one task at a time, in the runner's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tuner.core.problem.gpu import Target
from tuner.dispatch import MeasureLane
from tuner.service.concurrency.claims import Claims
from tuner.service.concurrency.retrying import RetryingWriter
from tuner.store import Store


class BackgroundWork:
    """What all such tasks have in common."""

    def __init__(
        self,
        store: Store,
        lane: MeasureLane,
        target: Target,
        claims: Claims,
        writer: RetryingWriter,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`claims` holds what other runners work on; `stop` is set when the service closes."""
        self._store = store
        self._lane = lane
        self._target = target
        self._claims = claims
        self._writer = writer
        self._stop = stop
        self._clock = clock
