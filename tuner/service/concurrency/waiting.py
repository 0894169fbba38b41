"""Waiting for a worker: without keeping the service from closing, and not for ever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from tuner.errors import Quarantined, TunerError, WorkerError

T = TypeVar("T")
_log = logging.getLogger(__name__)

#: Pauses before a candidate is submitted again, where it is the worker that fails, seconds: it may be coming back.
#: After the last one the job fails.
RETRY_PAUSES_S = (0.5, 2.0)


class Stopped(Exception):
    """The service is closing: leave everything as it is."""


class GaveWay(Exception):
    """The job is left open: it was paused, or it is another job's turn."""


class JobFailed(TunerError):
    """The job ends without a result; the message is its reason."""


def result_of(future: Future[T], stop: threading.Event) -> T:
    """What a worker answers.

    Raises:
        Stopped: `stop` was set first; closing pulls the workers from under what is in flight.
    """
    while not future.done():
        wait_for_one([future], stop)
    if stop.is_set():
        raise Stopped
    return future.result()


def wait_for_one(futures: Collection[Future[Any]], stop: threading.Event) -> None:
    """Returns when one of them is done, or after a moment.

    Raises:
        Stopped: `stop` is set.
    """
    wait(futures, timeout=0.2, return_when=FIRST_COMPLETED)
    if stop.is_set():
        raise Stopped


class Patience:
    """How often in a row a worker may fail before its job does."""

    def __init__(self, target_id: str, stop: threading.Event) -> None:
        self._target_id = target_id
        self._stop = stop
        self._num_failures = 0

    def worked(self) -> None:
        """The worker came through: what it failed before is forgotten."""
        self._num_failures = 0

    def failed(self, error: WorkerError) -> None:
        """Pauses, so that what failed can be sent again.

        Raises:
            JobFailed: the worker failed too often.
            Quarantined: the card is not fit; the job continues when it is.
        """
        if isinstance(error, Quarantined):
            raise error
        if self._num_failures == len(RETRY_PAUSES_S):
            times = f"{1 + self._num_failures} times"
            raise JobFailed(f"the worker of {self._target_id} failed {times}: {error}") from error
        _log.warning("the worker of %s failed, it is tried again: %s", self._target_id, error)
        self._stop.wait(RETRY_PAUSES_S[self._num_failures])
        self._num_failures += 1

    def result(self, submit: Callable[[], Future[T]]) -> T:
        """The result of what `submit` sends, sent again where the worker failed.

        Raises:
            JobFailed, Quarantined: as `failed`.
            Stopped: the service is closing.
        """
        while True:
            try:
                result = result_of(submit(), self._stop)
            except WorkerError as error:
                self.failed(error)
            else:
                self.worked()
                return result
