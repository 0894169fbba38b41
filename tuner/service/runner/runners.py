"""The runners of a service: one per worker, including workers that connect later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tuner.core.problem.gpu import Target
from tuner.errors import StoreUnavailable, WorkerError
from tuner.service.concurrency.claims import Claims
from tuner.service.runner.runner import Runner


class Runners:
    """All runners of a service; thread-safe. If a worker connects before `start`, its runner begins with `start`; if it
    connects after `begin_drain` or `stop`, its runner never begins."""

    def __init__(self, make: Callable[[Target, int, Claims], Runner]) -> None:
        """`make` returns the runner for a worker of a target, by its number; all share the claims."""
        self._make = make
        self._claims = Claims()
        #: Reentrant, since a signal handler calls `begin_drain` while its thread may be in any method.
        self._lock = threading.RLock()
        self._runners: list[Runner] = []
        self._is_started = False
        self._is_stopped = False

    def join_in(self, target: Target, worker: int) -> None:
        """Adds a new worker, which gets a runner."""
        with self._lock:
            if self._is_stopped:
                return
            runner = self._make(target, worker, self._claims)
            self._runners.append(runner)
            if self._is_started:
                runner.start()

    def start(self) -> None:
        """Starts the existing runners."""
        with self._lock:
            self._is_started = True
            for runner in self._runners:
                runner.start()

    def begin_drain(self) -> None:
        """Makes all runners end once the trials on their cards are recorded. Does not wait; may be called
        repeatedly.
        """
        with self._lock:
            self._is_stopped = True
            for runner in self._runners:
                runner.drain()

    def drain(self, timeout_s: float) -> None:
        """Returns when all runners have ended, or after `timeout_s`."""
        self.begin_drain()
        deadline = time.monotonic() + timeout_s
        for runner in self._runners:
            runner.wait(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Makes all runners end soon."""
        with self._lock:
            self._is_stopped = True
            for runner in self._runners:
                runner.stop()

    def join(self) -> None:
        """Waits until all runners have ended."""
        for runner in self._runners:
            runner.join()

    def check_alive(self) -> None:
        """Raises `WorkerError` if a runner ended with an error; only a restart helps."""
        with self._lock:
            for runner in self._runners:
                if runner.fault:
                    raise WorkerError(
                        f"the runner of {runner.target.id} has stopped ({runner.fault}); restart the server"
                    )

    def check_ready(self) -> None:
        """Raises `StoreUnavailable` if a runner waits for the database, `WorkerError` if one has ended."""
        self.check_alive()
        with self._lock:
            for runner in self._runners:
                if runner.trouble:
                    raise StoreUnavailable(f"work on {runner.target.id} is suspended: {runner.trouble}")
                if not runner.is_alive():
                    raise WorkerError(f"the runner of {runner.target.id} is not running; restart the server")
