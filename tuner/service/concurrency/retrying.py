"""Writes that are retried until they succeed, so that no measurement is lost while the database is locked or the disk
is full."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from tuner.errors import StoreUnavailable
from tuner.service.concurrency.waiting import Stopped
from tuner.store import Session, Store

T = TypeVar("T")
_log = logging.getLogger(__name__)

#: Pauses before a write is retried, seconds; the last one repeats.
RETRY_PAUSES_S = (0.1, 0.3, 1.0, 2.0)


class RetryingWriter:
    """Writes for one runner, in its thread; `trouble` may be read by any thread."""

    def __init__(self, store: Store, stop: threading.Event) -> None:
        self._store = store
        self._stop = stop
        #: The reason for waiting; empty if it does not wait.
        self.trouble = ""

    def write(self, work: Callable[[Session], T], *, brings_work: bool = True) -> T:
        """The result of `work` in a writing session, retried until the database accepts it, so `work` may run several
        times. `brings_work` means the same as for `Store.write`.

        Raises:
            Stopped: the service is closing, before the database accepted it.
        """

        def attempt() -> T:
            with self._store.write(brings_work=brings_work) as session:
                return work(session)

        return self._until_done(attempt)

    def keep(self, content: bytes) -> str:
        """Stores an artifact, retrying until it is on disk; returns its digest.

        Raises:
            Stopped: the service is closing, before the file was on disk.
        """
        return self._until_done(lambda: self._store.artifacts.put(content))

    def wait_after(self, error: StoreUnavailable, num_failures: int) -> None:
        """Pauses after the `num_failures`-th failure in a row.

        Raises:
            Stopped: the service is closing.
        """
        if not self.trouble:
            _log.warning("work is suspended: %s", error)
        self.trouble = str(error)
        if self._stop.wait(RETRY_PAUSES_S[min(num_failures, len(RETRY_PAUSES_S)) - 1]):
            raise Stopped from error

    def is_well(self) -> None:
        """Records that the database works again."""
        if self.trouble:
            _log.warning("work continues: the database is available again")
        self.trouble = ""

    def _until_done(self, attempt: Callable[[], T]) -> T:
        num_failures = 0
        while True:
            try:
                done = attempt()
            except StoreUnavailable as error:
                num_failures += 1
                self.wait_after(error, num_failures)
            else:
                self.is_well()
                return done
