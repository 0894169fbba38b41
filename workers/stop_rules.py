"""When a series of rounds is long enough: pure, judged by the ratios so far and the time that they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core import stats
from tuner.core.job import Regime


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When a series of rounds is long enough: a pure function of the ratios so far."""

    #: At least so many rounds, whatever they say.
    min_rounds: int = 12
    #: At most so many.
    max_rounds: int = 60
    #: Enough when the relative standard error of the median ratio is below this.
    rel_error: float = 0.002
    #: Seconds after which it stops, once `min_rounds` are there.
    seconds: float = 0.6

    def is_over(self, ratios: Sequence[float], elapsed_s: float) -> bool:
        """Whether to stop after these rounds."""
        num_rounds = len(ratios)
        if num_rounds < self.min_rounds:
            return False
        # The standard error of a median is 1.25 sigma / sqrt(n); sigma of a normal is the half IQR / 0.674.
        error = 1.25 * stats.relative_spread(ratios) / 0.674 / num_rounds**0.5
        return num_rounds >= self.max_rounds or elapsed_s > self.seconds or error < self.rel_error


def stop_rule(regime: Regime) -> StopRule:
    """In sustained a round costs its load, so there are fewer."""
    if regime is Regime.SUSTAINED:
        return StopRule(min_rounds=4, max_rounds=8, rel_error=0.003, seconds=0.8)
    return StopRule()
