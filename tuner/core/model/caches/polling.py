"""Polls of signals, each a round trip to the L2: how long a task polls until it has seen that its waits are over.

Each thread that polls checks one signal of a wait at a time, so a wait with more signals takes several passes, in the
order of the signals. A CTA that waits has passed the signals that were set before; it still needs the passes from the
last signal that was set.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuner.core.plan.table.words import Plan

#: Signals of a wait that one check of the waits ahead covers: `kFewSignals` of sync.cuh.
FEW_SIGNALS = 8


class Polls:
    """The signals of one run, and the times at which they were set."""

    def __init__(self, plan: Plan, num_pollers: int, poll_us: float) -> None:
        """`plan` has the waits that cost time, each of its polls `poll_us`."""
        self._num_pollers, self._poll_us = num_pollers, poll_us
        waits, tasks = plan.waits, plan.tasks[:, 3:5].tolist()
        num_signals, is_first = waits[:, 1] - waits[:, 0], waits[:, 4] == 0
        passes = -(-num_signals // num_pollers)
        self._signals: list[list[int]] = waits[:, :2].tolist()
        self._passes: list[int] = passes.tolist()
        #: [task] its waits before the first step.
        self._first = [[wait for wait in range(begin, end) if is_first[wait]] for begin, end in tasks]
        #: [task] time of the polls of later steps, which are polled while earlier steps are computed. One check covers
        #: all waits that are over, except a wait with many signals, which is checked and then waited for, in turn with
        #: the inputs of its steps.
        self.later_us = _per_task(plan, poll_us * (~is_first & (num_signals > FEW_SIGNALS)) * (1 + passes))
        #: [signal] when it was last posted; wait that is over -> when a CTA that waits for it has seen that.
        self._set_us = [0.0] * plan.num_signals
        self._seen_us: dict[int, float] = {}

    def post(self, signal: int, now_us: float) -> None:
        """A tile posts to a signal, or to none if it is -1."""
        if signal >= 0:
            self._set_us[signal] = now_us

    def seen_us(self, task: int, begin_us: float, now_us: float) -> float:
        """When a CTA that polls for a task's first waits since `begin_us` has seen that they are over, which they are
        at `now_us`."""
        for wait in self._first[task]:
            if wait not in self._seen_us:
                self._seen_us[wait] = self._passed_us(wait)
            begin_us = max(begin_us + self._passes[wait] * self._poll_us, self._seen_us[wait])
        return max(begin_us, now_us)

    def _passed_us(self, wait: int) -> float:
        """When the last pass ends if each one ends a poll after its signals are set, and after the pass before it."""
        (begin, end), size, now_us = self._signals[wait], self._num_pollers, 0.0
        for first in range(begin, end, size):
            now_us = max(now_us, *self._set_us[first : min(end, first + size)]) + self._poll_us
        return now_us


def _per_task(plan: Plan, of_wait: npt.NDArray[np.float64]) -> list[float]:
    """[task] the sum over its waits."""
    before = np.concatenate(([0.0], np.cumsum(of_wait)))
    sums: list[float] = (before[plan.tasks[:, 4]] - before[plan.tasks[:, 3]]).tolist()
    return sums
