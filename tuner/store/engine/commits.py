"""Commits, and threads that wait for one. Only relevant commits wake a waiter, since polling would cost interpreter
time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy.orm import Session

from tuner.store.engine.foreign import POLL_S, ForeignWrites

_KEY = "tuner.store.engine.commits"
#: Topics that can be waited for, besides the events of a job, whose topic is its id.
_ANY, _WORK = "any commit", "work"


class Wake(Protocol):
    """An object that is notified of a commit, immediately and from any thread: a `threading.Event`, or one that wakes a
    task of an event loop."""

    def set(self) -> None:
        """Records that there was a commit."""
        ...


def note_event(session: Session, job_id: str) -> None:
    """Records that a transaction adds an event of a job."""
    session.info.setdefault(_KEY, set()).add(job_id)


def jobs_with_events(session: Session) -> frozenset[str]:
    """Jobs to which the transaction adds events."""
    return frozenset(session.info.get(_KEY, ()))


class Commits:
    """The number of commits since the store was opened. Thread-safe. Commits of other processes are found by `foreign`,
    and may be relevant to every waiter."""

    def __init__(self, foreign: ForeignWrites | None) -> None:
        self._foreign = foreign
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Wake]] = {}
        self._watcher: threading.Thread | None = None
        #: Number of all commits, and of the commits that may create work for a runner.
        self.num_writes = self.num_works = 0

    def note(self, job_ids: Collection[str] | None, *, brings_work: bool) -> None:
        """Counts a commit that added events to the jobs `job_ids`; None if they are unknown."""
        with self._lock:
            self.num_writes += 1
            self.num_works += brings_work
            concerned = self._waiting if job_ids is None else (_ANY, *([_WORK] if brings_work else ()), *job_ids)
            for concern in concerned:
                for one in self._waiting.get(concern, ()):
                    one.set()

    def wait_for_write(self, seen: int, timeout_s: float) -> int:
        """Blocks until there are more than `seen` commits, or for `timeout_s`; returns the number of commits."""
        self._wait(_ANY, lambda: self.num_writes > seen, timeout_s)
        return self.num_writes

    def wait_for_work(self, seen: int, timeout_s: float) -> int:
        """Same as `wait_for_write`, for commits that may create work."""
        self._wait(_WORK, lambda: self.num_works > seen, timeout_s)
        return self.num_works

    @contextmanager
    def listening(self, job_ids: Collection[str], wake: Wake) -> Iterator[None]:
        """Within the block, `wake` is set whenever one of the jobs may have new events. Waiters need no separate
        thread."""
        with self._lock:
            for job_id in job_ids:
                self._waiting.setdefault(job_id, []).append(wake)
        self._watch_others()
        try:
            yield
        finally:
            self._forget(job_ids, wake)

    def _watch_others(self) -> None:
        """Makes one thread poll for commits of other processes while there are waiters."""
        with self._lock:
            if self._foreign is None or (self._watcher is not None and self._watcher.is_alive()):
                return
            self._watcher = threading.Thread(target=self._watch, name="commits of others", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            if self._foreign is not None and self._foreign.have_come():
                self.note(None, brings_work=True)
            with self._lock:
                if not self._waiting:
                    self._watcher = None
                    return

    def _forget(self, concerns: Collection[str], wake: Wake) -> None:
        with self._lock:
            for concern in concerns:
                self._waiting[concern].remove(wake)
                if not self._waiting[concern]:
                    del self._waiting[concern]

    def _wait(self, concern: str, is_over: Callable[[], bool], timeout_s: float) -> None:
        end, own = time.monotonic() + timeout_s, threading.Event()
        with self._lock:
            if is_over():
                return
            self._waiting.setdefault(concern, []).append(own)
        try:
            while (left := end - time.monotonic()) > 0:
                if own.wait(left if self._foreign is None else min(left, POLL_S)):
                    return
                if self._foreign is not None and self._foreign.have_come():
                    self.note(None, brings_work=True)
        finally:
            self._forget([concern], own)
