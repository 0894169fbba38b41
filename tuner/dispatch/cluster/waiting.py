"""What a worker says while no scheduler answers: at once, and then every few minutes. It waits as long as it takes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

#: Between two lines about the same wait, seconds.
REMIND_S = 300.0


class Waiting:
    """Of one worker for one scheduler."""

    def __init__(self, scheduler: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._scheduler, self._clock = scheduler, clock
        self._since: float | None = None
        self._last_line_at = 0.0

    def failed(self, reason: str) -> None:
        """The scheduler did not answer, or is lost."""
        now = self._clock()
        if self._since is None:
            self._since = self._last_line_at = now
            log.warning(
                "the scheduler %s does not answer (%s); this worker joins when it does. "
                "Start `tuner scheduler` there, or mend address, certificates or network",
                self._scheduler,
                reason,
            )
        elif now - self._last_line_at >= REMIND_S:
            self._last_line_at = now
            log.warning(
                "the scheduler %s has not answered for %.0f minutes; this worker still waits",
                self._scheduler,
                (now - self._since) / 60,
            )

    def joined(self) -> None:
        """The worker is in the cluster."""
        self._since = None
