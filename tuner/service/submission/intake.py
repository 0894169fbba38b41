"""Handles simultaneous submissions: those that arrive during a transaction share the next one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from tuner.core.trial.records import JobRecord
from tuner.errors import StoreUnavailable
from tuner.service.submission.submissions import Submission, Submissions

#: Maximum number of submissions per transaction, since other writers wait for it.
MAX_TOGETHER = 64
#: Minimum seconds between the starts of two transactions. Under load several requests share one; a single request does
#: not wait.
PERIOD_S = 0.02

Answer = Future[tuple[JobRecord, bool]]


class Intake:
    """One thread that submits for all requests. A request waits at most until the current transaction and its period
    have ended. If the database is not writable, all waiting requests fail immediately."""

    def __init__(self, submissions: Submissions) -> None:
        self._submissions = submissions
        self._lock = threading.Lock()
        self._waiting: list[tuple[Submission, Answer]] = []
        #: When the next transaction may begin, by the monotonic clock.
        self._next_at = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")

    def submit(self, asked: Submission) -> Answer:
        """The result of `Submissions.submit`, once it is in the database. May be called from any thread."""
        answer = Answer()
        with self._lock:
            self._waiting.append((asked, answer))
            if len(self._waiting) == 1:
                self._thread.submit(self._work)
        return answer

    def close(self) -> None:
        """Ends the thread after handling its queued requests."""
        self._thread.shutdown()

    def _work(self) -> None:
        """Submits the requests that wait."""
        time.sleep(max(0.0, self._next_at - time.monotonic()))
        self._next_at = time.monotonic() + PERIOD_S
        with self._lock:
            waiting, self._waiting = self._waiting, []
        refused: StoreUnavailable | None = None
        for begin in range(0, len(waiting), MAX_TOGETHER):
            part = waiting[begin : begin + MAX_TOGETHER]
            if refused is None:
                outcomes = self._submissions.submit_together([asked for asked, _ in part])
                refused = next((one for one in outcomes if isinstance(one, StoreUnavailable)), None)
            else:  # all have waited equally long; one by one, each would wait for the database again
                outcomes = [refused] * len(part)
            for (_, answer), outcome in zip(part, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)
