"""When a searching job releases the card: if it is paused, or if another job gets its turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tuner.core.trial.records import JobRecord
from tuner.errors import StoreUnavailable
from tuner.service.concurrency.claims import Claims
from tuner.store import Store
from tuner.store.jobs import jobs, queue

#: Minimum time for which a job keeps the card if no other has a higher priority, seconds, since a change costs new
#: inputs and a new baseline.
TURN_S = 30.0
#: Interval between two database queries, seconds.
_CHECK_S = 0.5


class Turn:
    """One turn of a job at a card."""

    def __init__(
        self,
        store: Store,
        claims: Claims,
        job: JobRecord,
        clock: Callable[[], float],
        kinds: Collection[str] | None = None,
    ) -> None:
        """If `kinds` is given, only other jobs whose ops are of these kinds count."""
        self._store = store
        self._claims = claims
        self._job = job
        self._clock = clock
        self._kinds = kinds
        #: When the turn began, by the monotonic clock. It starts with its first trial; the time before is the cost of
        #: the change.
        self._began_at: float | None = None
        self._checked_at = time.monotonic()

    def is_over(self) -> bool:
        """Whether the job is paused, a job of higher priority waits, or another owner has waited for long enough."""
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
        if now - self._checked_at < _CHECK_S:
            return False
        self._checked_at = now
        try:
            with self._store.read() as session:
                if jobs.is_paused(session, self._job.id):
                    return True
                others = self._claims.jobs.besides(self._job.id)
                if now - self._began_at < TURN_S:
                    return queue.is_outranked(session, self._job, besides=others, kinds=self._kinds)
                target_id, now = self._job.spec.target_id, self._clock()
                first = queue.next_open(session, target_id, now, besides=others, kinds=self._kinds)
        except StoreUnavailable:
            return False
        return first is not None and first.id != self._job.id
