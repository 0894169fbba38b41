"""Handles many simultaneous submissions: those that arrive during a transaction share the next one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from tuner.core.trial.records import JobRecord
from tuner.errors import StoreUnavailable
from tuner.service.submission.submissions import Submission, Submissions

#: Maximum submissions per transaction: others wait for the database meanwhile.
MAX_TOGETHER = 64
#: Minimum seconds from the start of a transaction to the start of the next one. Under load several requests share each;
#: a single request does not wait.
PERIOD_S = 0.02

Answer = Future[tuple[JobRecord, bool]]


class Intake:
    """One thread that submits for all. A request waits at most for the current transaction, or for its period to
    end. While the database is not writable, all waiting requests fail immediately."""

    def __init__(self, submissions: Submissions) -> None:
        self._submissions = submissions
        self._lock = threading.Lock()
        self._waiting: list[tuple[Submission, Answer]] = []
        #: When the next transaction may begin, by the monotonic clock.
        self._next_at = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")

    def submit(self, asked: Submission) -> Answer:
        """What `Submissions.submit` returns or raises, once it is in the database. Any thread may call."""
        answer = Answer()
        with self._lock:
            self._waiting.append((asked, answer))
            if len(self._waiting) == 1:
                self._thread.submit(self._work)
        return answer

    def close(self) -> None:
        """Ends the thread after handling the requests that it has."""
        self._thread.shutdown()

    def _work(self) -> None:
        """Submits what waits."""
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
            else:  # they have waited as long; each part would wait for the database again, one after the other
                outcomes = [refused] * len(part)
            for (_, answer), outcome in zip(part, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)
