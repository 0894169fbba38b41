"""Decides which server runs the jobs: a standby server takes over when the active one dies; a server without standby
reacquires its lock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tuner.errors import StoreError
from tuner.store.admin.leadership import Leadership

log = logging.getLogger(__name__)

#: Interval between two attempts to lead, and between two checks of the leadership, seconds.
PERIOD_S = 1.0
#: The leading server writes a heartbeat at this interval. A server without one for this long hangs or was stopped,
#: which is reported repeatedly, seconds.
SILENT_S, _TELL_S = 15.0, 60.0


class Standby:
    """Watches the leadership, in its own thread."""

    def __init__(
        self,
        leadership: Leadership,
        lead: Callable[[], None],
        give_up: Callable[[], None],
        period_s: float = PERIOD_S,
        *,
        is_alone: bool = False,
    ) -> None:
        """`lead` is called once this server leads, and `give_up` if the leadership was lost or `lead` failed, since two
        servers must not both run the jobs. A server that `is_alone` leads already. It waits for an unavailable
        database, and stops if another server was faster."""
        self._is_alone = is_alone
        self._leadership = leadership
        self._lead = lead
        self._give_up = give_up
        self._period_s = period_s
        self._stop = threading.Event()
        #: Whether this server runs the jobs.
        self.leads = False
        #: Why no server runs them, and what to do; empty while one does.
        self.trouble = ""
        self._sign: tuple[str, int] | None = None
        self._sign_at = self._said_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="standby", daemon=True)

    def start(self) -> None:
        """Starts; the first attempt is immediate."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the watching; the leadership lasts until the store is closed."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self.leads and not self._leadership.is_held() and not (self._is_alone and self._regain()):
                    log.critical(
                        "the database has dropped this server's lock: the server ends, so that another one can lead"
                    )
                    self._give_up()
                    return
                if not self.leads:
                    self._try()
                if self.leads:
                    self._leadership.beat()
                else:
                    self._check_leader()
                self._stop.wait(self._period_s)
        except Exception:
            log.critical("this server cannot run the jobs, and stops", exc_info=True)
            self._give_up()

    def _check_leader(self) -> None:
        """Checks that the server with the lock is alive, since the kernel keeps the lock of a stopped process. The lock
        is not taken from it, since it may continue at any moment, in the middle of a write."""
        now, sign = time.monotonic(), self._leadership.sign_of_life()
        if sign != self._sign:
            self._sign, self._sign_at, self.trouble = sign, now, ""
        elif now - self._sign_at > SILENT_S:
            pid, _ = sign
            self.trouble = (
                f"no jobs are being run: the server with the pid {pid} has the lock of {self._leadership.directory}, "
                f"but has not responded for {SILENT_S:g} s. It hangs, or was stopped. On its machine, `kill -CONT "
                f"{pid}` resumes one that was stopped; after `kill -9 {pid}` this server takes over"
            )
            if now - self._said_at > _TELL_S:
                self._said_at = now
                log.error("%s", self.trouble)

    def _regain(self) -> bool:
        """Waits until the database responds and this server has its lock again; false if another server has it."""
        log.warning("the database has dropped this server's lock, which is taken again when the database responds")
        try:
            while not self._stop.is_set() and not self._leadership.regain():
                self._stop.wait(self._period_s)
        except StoreError as error:
            log.critical("%s", error)
            return False
        log.warning("this server has its lock again, and continues")
        return True

    def _try(self) -> None:
        try:
            self._leadership.take()
            if not self._is_alone:
                self._leadership.sign()
        except StoreError as error:
            self._leadership.release()
            log.debug("another server runs the jobs: %s", error)
            return
        self._leadership.beat()
        self._lead()
        self.leads, self.trouble = True, ""
        log.info("this server runs the jobs now")
