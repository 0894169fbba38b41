"""A card that may not be fit: it is probed from time to time, until it may be measured on again."""

from __future__ import annotations

import logging
import threading
import time

from tuner.core.problem.gpu import Target
from tuner.dispatch import Dispatcher
from tuner.errors import WorkerError
from tuner.service.waiting import Stopped, result_of
from tuner.service.watched_lane import WatchedLane

_log = logging.getLogger(__name__)

#: Pauses before the probes of a card in quarantine, seconds; the last one again and again.
PROBE_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

#: Between two looks whether a quarantine has ended by itself, seconds.
_RECHECK_S = 0.5


class Probation:
    """Of the card of one runner, whose thread uses it."""

    def __init__(
        self, dispatcher: Dispatcher, lane: WatchedLane, target: Target, worker: int, stop: threading.Event
    ) -> None:
        self._dispatcher = dispatcher
        self._lane = lane
        self._target = target
        self._worker = worker
        self._stop = stop
        self._num_probes = 0

    @property
    def _is_in_quarantine(self) -> bool:
        return self._dispatcher.quarantine(self._target.id, self._worker) is not None

    def is_fit(self) -> bool:
        """Whether the card may be measured on; one in quarantine is probed, after a pause that grows."""
        if not self._is_in_quarantine:
            self._num_probes = 0
            return True
        pause_s = PROBE_PAUSES_S[min(self._num_probes, len(PROBE_PAUSES_S) - 1)]
        self._num_probes += 1
        if not self._pause(pause_s) or not self._is_in_quarantine:
            return False
        try:
            result_of(self._lane.probe(), self._stop)
        except (Stopped, WorkerError) as error:
            _log.info("%s stays in quarantine: %s", self._target.id, error)
            return False
        _log.warning("%s is fit again", self._target.id)
        return True

    def _pause(self, pause_s: float) -> bool:
        """Waits before a probe, or until the quarantine has ended without one, as it does where a worker has come back;
        whether the service goes on."""
        end = time.monotonic() + pause_s
        while (left := end - time.monotonic()) > 0:
            if self._stop.wait(min(left, _RECHECK_S)):
                return False
            if not self._is_in_quarantine:
                break
        return True
