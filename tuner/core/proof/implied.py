"""What a task's waits stand for beyond their own signals: the waits of the tasks that made the posts, and so on.

A wait that counts all posts of a signal is over once every tile that posts there is done. A tile is done once each of
its parts is, hence once all waits of these are over. So the signals that those count have had all their posts, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuner.core.plan.words import Plan

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
#: Later than any wait.
NEVER = np.iinfo(np.int64).max


def counted_before(plan: Plan, wait_begin: int, wait_end: int, totals: Ints) -> Ints:
    """[num_signals + 1] the k-step before which these waits count all posts of the signal; the last one stands for
    "posts nothing"."""
    begin, end, needed, _, step = plan.waits[wait_begin:wait_end].astype(np.int64).T
    num_signals = end - begin
    first = np.cumsum(num_signals) - num_signals
    signals = np.arange(num_signals.sum(), dtype=np.int64) + np.repeat(begin - first, num_signals)
    counts = np.repeat(needed, num_signals) >= totals[signals]
    before = np.full(plan.num_signals + 1, NEVER)
    np.minimum.at(before, signals[counts], np.repeat(step, num_signals)[counts])
    return before


class Implied:
    """The signals that have had all their posts when some waits are over."""

    def __init__(self, plan: Plan, totals: Ints) -> None:
        self._plan, self._totals = plan, totals
        ranges, range_of = np.unique(plan.tasks[:, 3:5], axis=0, return_inverse=True)
        waits = ranges[:, 1] > ranges[:, 0]
        posts = np.flatnonzero((plan.tasks[:, 5] >= 0) & waits[range_of.reshape(-1)])
        pairs = np.column_stack((plan.tasks[posts, 5], range_of.reshape(-1)[posts]))
        pairs = np.unique(pairs, axis=0) if len(pairs) else pairs.reshape(0, 2)
        #: By signal, the lists of waits of the tasks that post to it.
        self._first_of = np.concatenate(([0], np.cumsum(np.bincount(pairs[:, 0], minlength=plan.num_signals))))
        self._lists = pairs[:, 1]
        self._ranges: list[list[int]] = ranges.tolist()
        self._own: dict[tuple[int, int], Flags] = {}
        self._all: dict[tuple[int, int], Flags] = {}

    def by_waits(self, begin: int, end: int, signals: Ints) -> Flags:
        """Of these signals, of which -1 stands for "posts nothing", whether all their posts have come when the waits of
        this range are over, by these waits or by those before them."""
        own = self._counted(begin, end)
        covered = own[signals]
        return covered if covered.all() else self._reached(begin, end)[signals]

    def _counted(self, begin: int, end: int) -> Flags:
        """[num_signals + 1] whether the waits of a range count all posts of the signal."""
        if (begin, end) not in self._own:
            self._own[begin, end] = counted_before(self._plan, begin, end, self._totals) < NEVER
        return self._own[begin, end]

    def _reached(self, begin: int, end: int) -> Flags:
        """The same of these waits and of all that stand behind them."""
        if (begin, end) not in self._all:
            reached = self._counted(begin, end).copy()
            seen, new = set[int](), np.flatnonzero(reached)
            while new.size:
                lists = {number for signal in new.tolist() for number in self._posters(signal)} - seen
                seen |= lists
                before = reached.copy()
                for number in lists:
                    reached |= self._counted(*self._ranges[number])
                new = np.flatnonzero(reached & ~before)
            self._all[begin, end] = reached
        return self._all[begin, end]

    def _posters(self, signal: int) -> list[int]:
        numbers: list[int] = self._lists[self._first_of[signal] : self._first_of[signal + 1]].tolist()
        return numbers
