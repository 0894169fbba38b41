"""A lent card: used only while no other process uses it, and released within a second when one does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

#: Seconds between two checks. Detecting another process and ending ours take little longer.
READ_EVERY_S = 0.25
#: Seconds without another process before the card is used again.
QUIET_S = 10.0


def num_others(listed: Collection[int], own: Collection[int], *, is_there: bool) -> int:
    """Processes on a card other than our own.

    Args:
        listed: process ids that the driver lists.
        own: our process ids, as this machine numbers them.
        is_there: whether one of ours is on the card now. If the driver has a different number for it, as in a
        container, one of those listed is taken to be ours.
    """
    others = set(listed) - set(own)
    stands_for_ours = is_there and len(others) == len(set(listed))
    return max(0, len(others) - stands_for_ours)


class Lending:
    """Watches one card in its own thread. `away` may be called from any thread."""

    def __init__(
        self,
        count_others: Callable[[], int],
        leave: Callable[[], None],
        *,
        every_s: float = READ_EVERY_S,
        quiet_s: float = QUIET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`count_others` returns the number of other processes on the card; `leave` immediately removes our process
        from it.
        """
        self._count_others = count_others
        self._leave = leave
        self._every_s = every_s
        self._quiet_s = quiet_s
        self._clock = clock
        self._seen_at: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lending", daemon=True)

    def start(self) -> None:
        """Starts the watching thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the watching thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def away(self) -> str:
        """Why the card is not available now; empty if it is."""
        if self._seen_at is None or self._clock() - self._seen_at >= self._quiet_s:
            return ""
        return "another process uses the card, which this service may only use in idle hours"

    def read(self) -> None:
        """Checks once, and leaves if another process is there."""
        if self._count_others():
            self._seen_at = self._clock()
            self._leave()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self.read()
