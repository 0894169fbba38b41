"""Handles steps of the wall clock: they are logged, and relative deadlines are shifted with the clock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tuner.store import Store
from tuner.store.jobs import queue

_log = logging.getLogger(__name__)

#: Minimum size of a step, seconds; smaller differences are normal clock corrections.
LEAST_STEP_S = 5.0
#: How long nothing expires after a step, seconds, since the clock may soon be set back.
_UNSURE_S = 3600.0


def steady_s() -> float:
    """Seconds of a clock that cannot be set. It includes time asleep, if the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ClockSteps:
    """Thread-safe; shared by a service's runners and the thread that removes old data."""

    def __init__(self, store: Store, clock: Callable[[], float], steady: Callable[[], float] = steady_s) -> None:
        self._store = store
        self._clock = clock
        self._steady = steady
        self._lock = threading.Lock()
        self._ahead_s = clock() - steady()
        self._stepped_at = float("-inf")

    def follow(self, *, leads: bool = True) -> None:
        """If the clock stepped since the last call, shifts the deadlines of open jobs by the same amount. Deadlines
        follow the clock of the server that runs the jobs, so only that server shifts them. A standby server only logs
        the step, and ignores it if it takes over.

        Raises:
            StoreUnavailable: the database cannot be written now; the next call tries again.
        """
        with self._lock:
            ahead_s = self._clock() - self._steady()
            step_s = ahead_s - self._ahead_s
            if abs(step_s) >= LEAST_STEP_S:
                if leads:
                    with self._store.write() as session:
                        queue.move_deadlines(session, step_s)
                self._stepped_at = self._steady()
                what = (
                    "the deadlines of open jobs are shifted too"
                    if leads
                    else ("no deadline is shifted, since another server leads")
                )
                _log.warning("the clock jumped by %+.0f s; %s", step_s, what)
            self._ahead_s = ahead_s

    @property
    def is_sure(self) -> bool:
        """Whether ages by this clock can be trusted."""
        return self._steady() - self._stepped_at >= _UNSURE_S
