"""A wall clock may go forward or back in one step: that is told, and what was to end in this many seconds still
does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tuner.store import Store
from tuner.store.jobs import queue

_log = logging.getLogger(__name__)

#: What is less is how clocks are set right, bit by bit; seconds.
LEAST_STEP_S = 5.0
#: So long after a step nothing is taken for too old, seconds: somebody may be about to set the clock back.
_UNSURE_S = 3600.0


def steady_s() -> float:
    """Seconds by a clock that nobody sets. It counts while the machine sleeps, where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ClockSteps:
    """Thread-safe; the runners of a service and its remover share one."""

    def __init__(self, store: Store, clock: Callable[[], float], steady: Callable[[], float] = steady_s) -> None:
        self._store = store
        self._clock = clock
        self._steady = steady
        self._lock = threading.Lock()
        self._ahead_s = clock() - steady()
        self._stepped_at = float("-inf")

    def follow(self, *, leads: bool = True) -> None:
        """Where the clock made a step since the last call, the deadlines of open jobs make it, too. They are judged by
        the clock of the server that runs the jobs, so it moves them; one that stands by, and does not lead, says that
        its clock was set. When it takes over, that step is behind it.

        Raises:
            StoreUnavailable: the database takes no writes now; the next call does it.
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
        """Whether ages by the clock may be believed."""
        return self._steady() - self._stepped_at >= _UNSURE_S
