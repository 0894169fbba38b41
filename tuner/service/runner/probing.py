"""Probes a card in quarantine until it is usable again."""

from __future__ import annotations

import logging
import threading
import time

from tuner.dispatch import Dispatcher, MeasureLane
from tuner.errors import WorkerError
from tuner.service.concurrency.waiting import Stopped, result_of

_log = logging.getLogger(__name__)

#: Pauses before the probes of a card in quarantine, seconds; the last one repeats.
PROBE_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

#: Polling interval for the end of a quarantine, seconds.
_RECHECK_S = 0.5


class Probing:
    """Probes the card of one worker, in its runner's thread."""

    def __init__(self, dispatcher: Dispatcher, lane: MeasureLane, worker: int, stop: threading.Event) -> None:
        self._dispatcher = dispatcher
        self._lane = lane
        self._worker = worker
        self._stop = stop
        self._num_probes = 0

    def is_fit(self) -> bool:
        """Whether the card may be used; a card in quarantine is probed, after increasing pauses."""
        if not self._is_quarantined:
            self._num_probes = 0
            return True
        pause_s = PROBE_PAUSES_S[min(self._num_probes, len(PROBE_PAUSES_S) - 1)]
        self._num_probes += 1
        if not self._pause(pause_s) or not self._is_quarantined:
            return False
        target_id = self._lane.target.id
        try:
            result_of(self._lane.probe(), self._stop)
        except (Stopped, WorkerError) as error:
            _log.info("%s stays in quarantine: %s", target_id, error)
            return False
        _log.warning("%s is usable again", target_id)
        return True

    @property
    def _is_quarantined(self) -> bool:
        return self._dispatcher.quarantine(self._lane.target.id, self._worker) is not None

    def _pause(self, pause_s: float) -> bool:
        """Waits before a probe, or until the quarantine ends without one, e.g. because a worker reconnects; returns
        whether the service continues."""
        end = time.monotonic() + pause_s
        while (left := end - time.monotonic()) > 0:
            if self._stop.wait(min(left, _RECHECK_S)):
                return False
            if not self._is_quarantined:
                break
        return True
