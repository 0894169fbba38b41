"""What the cards did in the last day, by minute, since this process started. Prometheus stores longer histories."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.dispatch.machine import CardReading
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


class FleetHistory:
    """Takes samples in its own thread. Thread-safe."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float], period_s: float = PERIOD_S) -> None:
        self._fleet = fleet
        self._clock = clock
        self._period_s = period_s
        self._samples: deque[FleetSample] = deque(maxlen=_MOST)
        self._counted: dict[str, int] = {}
        self._counted_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet history", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Makes the thread end soon."""
        self._stop.set()

    def join(self) -> None:
        """Waits until the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join()

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

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                self.take()
            except Exception:  # a missing sample must not end the service
                _log.exception("the fleet's history has a gap")
