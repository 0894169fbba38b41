"""When a series of rounds is long enough: pure functions of the ratios so far and of the elapsed time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core.problem.objective import Regime
from tuner.core.trial import stats


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When a series of rounds is long enough: a pure function of the ratios so far."""

    #: Minimum rounds, whatever the ratios.
    min_rounds: int = 8
    #: Maximum rounds.
    max_rounds: int = 48
    #: Enough when the relative standard error of the median ratio is below this.
    rel_error: float = 0.002
    #: Seconds after which it stops, once there are `min_rounds`.
    seconds: float = 0.25

    def is_over(self, ratios: Sequence[float], elapsed_s: float, num_taken: int | None = None) -> bool:
        """Whether to stop after these rounds, of which `num_taken` were run: `ratios` are those of the valid ones."""
        taken, num_rounds = num_taken or len(ratios), len(ratios)
        if taken >= self.max_rounds or (taken >= self.min_rounds and elapsed_s > self.seconds):
            return True
        if num_rounds < self.min_rounds:
            return False
        # The standard error of a median is 1.25 sigma / sqrt(n); sigma of a normal is the half IQR / 0.674.
        error = 1.25 * stats.relative_spread(ratios) / 0.674 / math.sqrt(num_rounds)
        return error < self.rel_error


@dataclass(frozen=True, kw_only=True)
class HopelessRule:
    """When a candidate is certainly far slower than the best so far: more rounds would be useless."""

    #: Hopeless below this share of the incumbent's speed-up, so far away that a rough time is enough for its rank.
    share: float = 0.8
    #: Minimum rounds, which a sign test requires.
    min_rounds: int = 5

    def is_hopeless(self, speedups: Sequence[float], incumbent_speedup: float | None) -> bool:
        """Whether the upper 95 % bound of the median speed-up is below the share; never without an incumbent."""
        if incumbent_speedup is None or len(speedups) < self.min_rounds:
            return False
        return stats.median_upper_bound(speedups) < self.share * incumbent_speedup

    def is_settled(self, speedups: Sequence[float], incumbent_speedup: float | None) -> bool:
        """Whether there are `min_rounds`, or the rounds so far already show that it is not hopeless: with the
        minimum for a sign test, every one must be below. Without an incumbent all are run, so that the rule can be
        judged later."""
        if incumbent_speedup is None or len(speedups) >= self.min_rounds:
            return len(speedups) >= self.min_rounds
        return any(speedup >= self.share * incumbent_speedup for speedup in speedups)


#: The rule for candidates that are certainly so much slower than the best that a few rounds are enough for their rank.
BEHIND = HopelessRule(share=0.98)

#: The rule for a preview before the first round: the ratios at one clock of short samples after a short load. All of
#: them must be below the share, so the first one that is not ends the preview. The share must cover what a slower
#: kernel may gain at the power limit by a higher clock: at most a tenth in recorded trials, and a twentieth in those
#: near the best.
PREVIEW = HopelessRule(share=0.87, min_rounds=5)


def is_previewed(regime: Regime) -> bool:
    """Whether a candidate is previewed: if a round costs far more than a preview."""
    return regime is Regime.SUSTAINED


def stop_rule(regime: Regime) -> StopRule:
    """The stop rule of a regime. Under sustained load a round includes its load, so there are fewer rounds, and each
    sample is longer. At the power limit the clock oscillates with a period of 0.9 s, so rounds span one period."""
    if regime is Regime.SUSTAINED:
        return StopRule(min_rounds=5, max_rounds=10, rel_error=0.004, seconds=0.9)
    return StopRule()
