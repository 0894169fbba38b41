"""How many candidates of a job are on their way at a time: arithmetic on what was seen of the job so far."""

from __future__ import annotations

import math
from collections import deque
from statistics import mean, median_low

#: Of a budget, at most one trial in this many is on its way: a search that knows nothing yet chooses them all blindly.
BUDGET_SHARE = 6
#: This many may be on their way where they are a third of the budget at most: a small budget is spent on priors and
#: first guesses, which need not know anything.
NUM_GUESSED = 6
#: Candidates that an estimate rests on, the last ones.
WINDOW = 8


class Ahead:
    """Keeps the card from waiting, and the search from choosing before it must.

    By Little's law the makers hold as many candidates as the cards measure while one is made. One more is at each card,
    and one is ready for it. Until the card has measured something, it is starting, and as many as may be are made.
    """

    def __init__(self, *, num_places: int, num_trials: int, max_ahead: int | None = None) -> None:
        """`num_places` is how many builds run at a time, `num_trials` the budget, and `max_ahead` how many candidates
        may be on their way besides one, at most."""
        most = min(num_places + 2, max(num_trials // BUDGET_SHARE, min(NUM_GUESSED, num_trials // 3)))
        self._most = max(1, most if max_ahead is None else min(most, 1 + max_ahead))
        self._made_s = deque[float](maxlen=WINDOW)
        self._measured_s = deque[float](maxlen=WINDOW)
        #: Cards that measure.
        self.num_lanes = 1

    def saw_made(self, seconds: float) -> None:
        """A candidate was made ready, or refused, in that time, its turn not counted."""
        self._made_s.append(seconds)

    def saw_measured(self, seconds: float) -> None:
        """A candidate had the card for that time."""
        self._measured_s.append(seconds)

    @property
    def depth(self) -> int:
        """How many candidates may be on their way now, at least 1."""
        if not self._made_s or not self._measured_s:
            return self._most
        # What was built before takes no time to make, and says nothing of the next build.
        slower_half = sorted(self._made_s)[len(self._made_s) // 2 :]
        # One that hangs takes a hundred times longer to measure: the median passes over it.
        at_a_time = mean(slower_half) / max(median_low(self._measured_s), 1e-6)
        return min(self._most, 2 * self.num_lanes + math.floor(self.num_lanes * at_a_time))
