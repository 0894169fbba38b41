"""What a task's waits imply beyond their own signals: the waits of the tasks that posted, and so on.

A wait that counts all posts of a signal is over once every tile that posts there is done. A tile is done once each of
its parts is done, and therefore once all their waits are over. So the signals that those waits count have had all their
posts, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuner.core.plan.table.words import Plan

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
#: A step later than any wait.
NEVER = np.iinfo(np.int64).max


def counted_before(plan: Plan, wait_begin: int, wait_end: int, totals: Ints) -> Ints:
    """[num_signals + 1] the k-step before which the given waits count all posts of each signal; the last entry stands
    for "posts nothing"."""
    begin, end, needed, _, step = plan.waits[wait_begin:wait_end].astype(np.int64).T
    num_signals = end - begin
    first = np.cumsum(num_signals) - num_signals
    signals = np.arange(num_signals.sum(), dtype=np.int64) + np.repeat(begin - first, num_signals)
    counts = np.repeat(needed, num_signals) >= totals[signals]
    before = np.full(plan.num_signals + 1, NEVER)
    np.minimum.at(before, signals[counts], np.repeat(step, num_signals)[counts])
    return before


class Implied:
    """The signals that have had all their posts when given waits are over."""

    def __init__(self, plan: Plan, totals: Ints) -> None:
        self._plan, self._totals = plan, totals
        keys, list_of = np.unique((plan.tasks[:, 3].astype(np.int64) << 32) + plan.tasks[:, 4], return_inverse=True)
        #: [tasks] index of each task's list of waits.
        self.list_of: Ints = list_of.reshape(-1)
        self._begin, self._end = keys >> 32, keys & 0xFFFFFFFF
        posts = np.flatnonzero((plan.tasks[:, 5] >= 0) & (self._end > self._begin)[self.list_of])
        pairs = np.unique(self.list_of[posts] * max(1, plan.num_signals) + plan.tasks[posts, 5])
        #: Lists whose tasks post, and the signals to which those tasks post.
        self._lists, self._signals = pairs // max(1, plan.num_signals), pairs % max(1, plan.num_signals)
        self._own: dict[int, Flags] = {}
        self._all: dict[int, Flags] = {}

    def by_waits(self, number: int, signals: Ints) -> Flags:
        """Whether all posts of `signals`, where -1 means "posts nothing", have arrived when the waits of list `number`
        are over, because of these waits or earlier ones."""
        covered = self._counted(number)[signals]
        return covered if covered.all() else self._reached(number)[signals]

    def _counted(self, number: int) -> Flags:
        """[num_signals + 1] whether the waits of a list count all posts of each signal."""
        if number not in self._own:
            begin, end = int(self._begin[number]), int(self._end[number])
            self._own[number] = counted_before(self._plan, begin, end, self._totals) < NEVER
        return self._own[number]

    def _reached(self, number: int) -> Flags:
        """[num_signals + 1] whether the waits of a list, or waits that they imply, count all posts of each signal."""
        if number not in self._all:
            reached, seen = self._counted(number).copy(), set[int]()
            while new := set(np.unique(self._lists[reached[self._signals]]).tolist()) - seen:
                seen |= new
                for other in new:
                    reached |= self._counted(other)
            self._all[number] = reached
        return self._all[number]
