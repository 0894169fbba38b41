"""Waiting for a worker, with limits, and ending early if the service closes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from tuner.errors import Quarantined, TunerError, WorkerError

T = TypeVar("T")
_log = logging.getLogger(__name__)

#: Pauses before a candidate is submitted again after a worker failure, seconds, since the worker may come back. After
#: the last one the job fails.
RETRY_PAUSES_S = (0.5, 2.0)


class Stopped(Exception):
    """The service is closing; nothing may be changed."""


class GaveWay(Exception):
    """The job stays open: it was paused, or it is another job's turn."""


class JobFailed(TunerError):
    """The job ends without a result; the message is the reason."""


def result_of(future: Future[T], stop: threading.Event) -> T:
    """The worker's answer.

    Raises:
        Stopped: `stop` was set first; closing stops the workers during their calls.
    """
    while not future.done():
        wait_for_one([future], stop)
    if stop.is_set():
        raise Stopped
    return future.result()


def wait_for_one(futures: Collection[Future[Any]], stop: threading.Event) -> None:
    """Waits until one of `futures` is done, for a limited time.

    Raises:
        Stopped: `stop` is set.
    """
    wait(futures, timeout=0.2, return_when=FIRST_COMPLETED)
    if stop.is_set():
        raise Stopped


class Patience:
    """Limits how often in a row a worker may fail before its job fails."""

    def __init__(self, target_id: str, stop: threading.Event) -> None:
        self._target_id = target_id
        self._stop = stop
        self._num_failures = 0

    def worked(self) -> None:
        """The worker succeeded: earlier failures no longer count."""
        self._num_failures = 0

    def failed(self, error: WorkerError) -> None:
        """Waits before the failed call is repeated.

        Raises:
            JobFailed: the worker failed too often.
            Quarantined: the card is not usable; the job continues once it is.
        """
        if isinstance(error, Quarantined):
            raise error
        if self._num_failures == len(RETRY_PAUSES_S):
            times = f"{1 + self._num_failures} times"
            raise JobFailed(f"the worker of {self._target_id} failed {times}: {error}") from error
        _log.warning("the worker of %s failed, and is tried again: %s", self._target_id, error)
        self._stop.wait(RETRY_PAUSES_S[self._num_failures])
        self._num_failures += 1

    def result(self, submit: Callable[[], Future[T]]) -> T:
        """The result of the call that `submit` makes, repeated after worker failures.

        Raises:
            JobFailed, Quarantined: same as for `failed`.
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
