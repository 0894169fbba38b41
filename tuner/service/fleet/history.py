"""What the cards did in the last day, by minute, since this process started. Prometheus stores longer histories."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.dispatch.machine import CardReading
from tuner.service.concurrency.periodic import PeriodicThread
from tuner.service.fleet.cards import Fleet

_log = logging.getLogger(__name__)

#: Time between two samples, and the number of stored samples: one day.
PERIOD_S = 60.0
_MOST = 24 * 60


@dataclass(frozen=True, kw_only=True)
class FleetSample:
    """What the cards did since the previous sample."""

    #: When the sample was taken, seconds since the epoch.
    at: float
    #: Time since the previous sample, seconds.
    seconds: float
    #: Trials of the whole fleet recorded since the previous sample, by outcome.
    trials: Mapping[str, int]
    #: The cards of this machine when the sample was taken.
    cards: Sequence[CardReading]

    @property
    def trials_per_minute(self) -> float:
        """Trials per minute, over all outcomes."""
        return 60 * sum(self.trials.values()) / self.seconds


class FleetHistory(PeriodicThread):
    """Takes samples in its own thread. Thread-safe."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float], period_s: float = PERIOD_S) -> None:
        super().__init__("fleet history", period_s)
        self._fleet = fleet
        self._clock = clock
        self._samples: deque[FleetSample] = deque(maxlen=_MOST)
        self._counted: dict[str, int] = {}
        self._counted_at = time.monotonic()

    def samples(self) -> list[FleetSample]:
        """Samples of the last day, oldest first."""
        return list(self._samples)

    def take(self) -> None:
        """Takes a sample of what was recorded since the previous one."""
        counted: dict[str, int] = {}
        for worker in self._fleet.workers():
            for outcome, count in worker.work.trials.items():
                counted[outcome] = counted.get(outcome, 0) + count
        now = time.monotonic()
        trials = {outcome: max(0, count - self._counted.get(outcome, 0)) for outcome, count in counted.items()}
        seconds, self._counted, self._counted_at = now - self._counted_at, counted, now
        cards = self._fleet.cards()
        self._samples.append(FleetSample(at=self._clock(), seconds=max(seconds, 1e-3), trials=trials, cards=cards))

    def work(self) -> None:
        """Takes a sample."""
        try:
            self.take()
        except Exception:  # a missing sample must not end the service
            _log.exception("the fleet's history has a gap")
