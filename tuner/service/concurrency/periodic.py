"""A thread that does some work again and again."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class PeriodicThread(ABC):
    """Calls `work` every `period_s` seconds until it is stopped; the first call comes after one period."""

    def __init__(self, name: str, period_s: float) -> None:
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def work(self) -> None:
        """Must not raise, since that would end the thread."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Makes the thread end soon."""
        self._stop.set()

    def join(self) -> None:
        """Waits until the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self.work()
