"""Bandwidth that several transfers share equally, in virtual time.

While n transfers are in progress, each gets 1/n of the rate. So one virtual clock in bytes, which advances at rate / n,
serves all of them: a transfer that begins at clock v ends at v plus its bytes, whatever other transfers do. Each
arrival or end costs one heap operation, however many are in progress.

Source: Demers, Keshav, Shenker, "Analysis and simulation of a fair queueing algorithm", SIGCOMM 1989.
"""

from __future__ import annotations

import heapq
import math


class FairShare:
    """Numbered transfers; `next_us` is when the next one ends, inf if there is none."""

    def __init__(self, bytes_per_us: float) -> None:
        self.next_us = math.inf
        self._rate = bytes_per_us
        self._now_us = self._virtual = 0.0
        self._ends: list[tuple[float, int]] = []
        #: [transfer] the clock's value at its end, and its bytes.
        self._of: dict[int, tuple[float, float]] = {}

    def begin(self, transfer: int, num_bytes: float, now_us: float) -> None:
        """Begins a transfer; time must not decrease between calls."""
        ends = self._ends
        if ends:
            self._virtual += (now_us - self._now_us) * self._rate / len(ends)
        self._now_us = now_us
        end = self._virtual + num_bytes
        self._of[transfer] = end, num_bytes
        heapq.heappush(ends, (end, transfer))
        self.next_us = now_us + (ends[0][0] - self._virtual) * len(ends) / self._rate

    def end(self) -> int:
        """The transfer that ends at `next_us`."""
        ends = self._ends
        self._virtual, transfer = heapq.heappop(ends)
        self._now_us = self.next_us
        del self._of[transfer]
        self.next_us = self._now_us + (ends[0][0] - self._virtual) * len(ends) / self._rate if ends else math.inf
        return transfer

    def left(self, transfer: int, now_us: float) -> float:
        """Share of a transfer's bytes that is still to come; 0 if it is not in progress."""
        if transfer not in self._of:
            return 0.0
        end, num_bytes = self._of[transfer]
        virtual = self._virtual + (now_us - self._now_us) * self._rate / len(self._ends)
        return min(1.0, max(0.0, (end - virtual) / num_bytes)) if num_bytes else 0.0
