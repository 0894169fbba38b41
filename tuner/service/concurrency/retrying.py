"""Writes that are not given up: what was measured is kept, however long the database is locked or the disk full."""

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

#: Pauses before a write is tried again, seconds; the last one again and again.
RETRY_PAUSES_S = (0.1, 0.3, 1.0, 2.0)


class RetryingWriter:
    """The writing hand of one runner. One thread uses it; any thread may read `trouble`."""

    def __init__(self, store: Store, stop: threading.Event) -> None:
        self._store = store
        self._stop = stop
        #: Why it waits; empty while it does not.
        self.trouble = ""

    def write(self, work: Callable[[Session], T], *, brings_work: bool = True) -> T:
        """What `work` answers in a writing session, tried until the database takes it; `work` may run several times.
        `brings_work` is as `Store.write` has it.

        Raises:
            Stopped: the service is closing, and the database has not taken it.
        """

        def attempt() -> T:
            with self._store.write(brings_work=brings_work) as session:
                return work(session)

        return self._until_done(attempt)

    def keep(self, content: bytes) -> str:
        """The digest of an artifact, once the disk has taken it.

        Raises:
            Stopped: the service is closing, and the disk has not taken it.
        """
        return self._until_done(lambda: self._store.artifacts.put(content))

    def wait_after(self, error: StoreUnavailable, num_failures: int) -> None:
        """A pause after the `num_failures`-th failure in a row.

        Raises:
            Stopped: the service is closing.
        """
        if not self.trouble:
            _log.warning("work is suspended: %s", error)
        self.trouble = str(error)
        if self._stop.wait(RETRY_PAUSES_S[min(num_failures, len(RETRY_PAUSES_S)) - 1]):
            raise Stopped from error

    def is_well(self) -> None:
        """Notes that the database answers."""
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
