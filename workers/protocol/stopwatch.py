"""Seconds by stage, for work with several stages."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Runs from its creation; each stage ends where the next one begins."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begin = clock()
        #: Seconds so far, by stage; repeated stages are added up.
        self.stage_s: dict[str, float] = {}

    def ended(self, stage: str) -> None:
        """Ends a stage now."""
        now = self._clock()
        self.stage_s[stage] = self.stage_s.get(stage, 0.0) + now - self._begin
        self._begin = now
