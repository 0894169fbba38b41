"""How many candidates of a job may be in progress, computed from the job's trials so far."""

from __future__ import annotations

import math
from collections import deque
from statistics import mean, median_low

#: At most one trial in `BUDGET_SHARE` of the budget may be in progress, since a search without results chooses blindly.
BUDGET_SHARE = 6
#: Number of candidates that may be in progress in any case if they are at most a third of the budget: a small budget
#: consists of priors and first guesses, which need no results.
NUM_GUESSED = 6
#: Number of latest candidates on which an estimate is based.
WINDOW = 8


class Ahead:
    """Keeps the card busy without making the search choose earlier than necessary.

    By Little's law, the builders hold as many candidates as the cards measure during one build. Each card holds one
    more, and another one is ready for it. Until the first measurement, the maximum number is in progress.
    """

    def __init__(self, *, num_places: int, num_trials: int, max_ahead: int | None = None) -> None:
        """`num_places` is the number of parallel builds, `num_trials` the budget; at most `max_ahead` + 1 candidates
        are in progress."""
        most = min(num_places + 2, max(num_trials // BUDGET_SHARE, min(NUM_GUESSED, num_trials // 3)))
        self._most = max(1, most if max_ahead is None else min(most, 1 + max_ahead))
        self._made_s = deque[float](maxlen=WINDOW)
        self._measured_s = deque[float](maxlen=WINDOW)
        #: Number of cards that measure.
        self.num_lanes = 1

    def saw_made(self, seconds: float) -> None:
        """A candidate became ready or was refused after `seconds`, excluding its waiting time."""
        self._made_s.append(seconds)

    def saw_measured(self, seconds: float) -> None:
        """A candidate occupied the card for `seconds`."""
        self._measured_s.append(seconds)

    @property
    def depth(self) -> int:
        """How many candidates may be in progress now, at least 1."""
        if not self._made_s or not self._measured_s:
            return self._most
        # A cached build takes no time, and says nothing about the next build.
        slower_half = sorted(self._made_s)[len(self._made_s) // 2 :]
        # A candidate that hangs takes a hundred times longer to measure; the median ignores it.
        at_a_time = mean(slower_half) / max(median_low(self._measured_s), 1e-6)
        return min(self._most, 2 * self.num_lanes + math.floor(self.num_lanes * at_a_time))
