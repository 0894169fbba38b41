"""Removes data that is no longer kept: deleted jobs, jobs beyond the limits of age and number, and ended sessions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from tuner.core.access.caller import LOCAL, SESSION_S
from tuner.errors import Conflict, NotFound, StoreUnavailable
from tuner.service.concurrency.clock_steps import ClockSteps
from tuner.service.concurrency.periodic import PeriodicThread
from tuner.settings import Retention
from tuner.store import Session, Store
from tuner.store.access import audit, ended_sessions
from tuner.store.admin import removal

_log = logging.getLogger(__name__)

#: Polling interval for deleted jobs, including those that another server deleted, seconds.
PERIOD_S = 2.0
#: Polling interval for jobs beyond the limits of age and number, seconds.
RETENTION_PERIOD_S = 300.0
#: Maximum number of jobs deleted in one writing session.
_SLICE = 20
_DAY_S = 86400.0


class Remover(PeriodicThread):
    """Runs in its own thread, on the server that runs the jobs."""

    def __init__(
        self,
        store: Store,
        retention: Retention,
        clock: Callable[[], float],
        leads: Callable[[], bool],
        clock_steps: ClockSteps,
    ) -> None:
        """`retention` says which jobs are kept; `leads` tells whether this server runs the jobs, and so may remove
        some. After a clock step, no job is treated as too old for a while."""
        super().__init__("remover", PERIOD_S)
        self._store = store
        self._retention = retention
        self._clock = clock
        self._leads = leads
        self._clock_steps = clock_steps
        self._checked_at = float("-inf")

    def work(self) -> None:
        """Removes data, if this server runs the jobs. If it is stopped meanwhile, the next start does the rest."""
        try:
            leads = self._leads()
            self._clock_steps.follow(leads=leads)
            if leads:
                self.tidy()
        except StoreUnavailable as error:
            _log.warning("old data will be removed later: %s", error)
        except Exception:  # must not end the service; the next attempt may succeed
            _log.exception("old data cannot be removed")

    def tidy(self) -> None:
        """Looks for data to remove once, and removes it.

        Raises:
            StoreUnavailable: the database cannot be written now.
        """
        if time.monotonic() - self._checked_at >= RETENTION_PERIOD_S:
            self.forget_sessions()
            if self._retention.is_on:
                self.expire()
            self._checked_at = time.monotonic()
        swept = self._store.sweep(lambda: not self._stop.is_set())
        if swept.num_jobs:
            _log.info("removed %d jobs, %d trials, %d files", swept.num_jobs, swept.num_trials, swept.num_files)

    def forget_sessions(self) -> None:
        """Removes ended sessions once their cookies have expired by any roughly correct clock."""
        if self._clock_steps.is_sure:
            with self._store.write(brings_work=False) as session:
                ended_sessions.forget(session, self._clock() - 2 * SESSION_S)

    def expire(self) -> int:
        """Marks jobs beyond the limits of age and number as deleted; returns how many."""
        days = self._retention.days if self._clock_steps.is_sure else None
        before = None if days is None else self._clock() - _DAY_S * days
        with self._store.read() as session:
            found = removal.expired(
                session, before=before, num_kept=self._retention.num_jobs, keeps_best=self._retention.keeps_best
            )
        for begin in range(0, len(found), _SLICE):
            if self._stop.is_set():
                break
            with self._store.write() as session:
                for job_id in found[begin : begin + _SLICE]:
                    self._expire_one(session, job_id)
        return len(found)

    def _expire_one(self, session: Session, job_id: str) -> None:
        """Marks a job as deleted, unless another process has done so, or the job is open."""
        with suppress(Conflict, NotFound):
            removal.mark(session, job_id, self._clock(), str(self._retention))
            audit.append(session, LOCAL, "job.expire", job_id, self._clock())
