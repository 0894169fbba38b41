"""When a series of rounds is long enough: pure, judged by the ratios so far and the time that they took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core.problem.objective import Regime
from tuner.core.trial import stats


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When a series of rounds is long enough: a pure function of the ratios so far."""

    #: At least this many rounds, whatever they say.
    min_rounds: int = 8
    #: At most this many.
    max_rounds: int = 48
    #: Enough when the relative standard error of the median ratio is below this.
    rel_error: float = 0.002
    #: Seconds after which it stops, once `min_rounds` are there.
    seconds: float = 0.25

    def is_over(self, ratios: Sequence[float], elapsed_s: float, num_taken: int | None = None) -> bool:
        """Whether to stop after these rounds, of which `num_taken` were taken: `ratios` are of those that count."""
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
    """When a candidate is certainly far worse than the best so far: more rounds would tell nothing of use."""

    #: Hopeless below this share of the incumbent's speed-up. Far enough that a rough time ranks it as well.
    share: float = 0.8
    #: At least this many rounds; a sign test says nothing of fewer.
    min_rounds: int = 5

    def is_hopeless(self, speedups: Sequence[float], incumbent_speedup: float | None) -> bool:
        """Whether the upper 95 % bound of the median speed-up is below the share; never without an incumbent."""
        if incumbent_speedup is None or len(speedups) < self.min_rounds:
            return False
        return stats.median_upper_bound(speedups) < self.share * incumbent_speedup

    def is_settled(self, speedups: Sequence[float], incumbent_speedup: float | None) -> bool:
        """Whether `min_rounds` are there, or the rounds so far say already that as many would not be hopeless: of the
        fewest that a sign test takes, every one must be below. Without an incumbent all are taken, for whoever judges
        the rule later."""
        if incumbent_speedup is None or len(speedups) >= self.min_rounds:
            return len(speedups) >= self.min_rounds
        return any(speedup >= self.share * incumbent_speedup for speedup in speedups)


#: What is certainly behind the best so far by so much needs no finer figure: it ranks as well by a few rounds.
BEHIND = HopelessRule(share=0.98)

#: What a preview before the first round is judged by: the ratios at one clock of short samples behind little load.
#: Every one of them must say it, so the first that does not ends the preview. What a slower kernel may gain at the
#: power limit by a higher clock has to lie within the share: at most a tenth in what was recorded, and a twentieth in
#: what ended near the best.
PREVIEW = HopelessRule(share=0.87, min_rounds=5)


def is_previewed(regime: Regime) -> bool:
    """Whether a candidate is previewed: where a round costs far more than a preview."""
    return regime is Regime.SUSTAINED


def stop_rule(regime: Regime) -> StopRule:
    """In sustained a round costs its load, so there are fewer, and each sample is longer. At the power limit the clock
    swings with a period of 0.9 s, so rounds span one."""
    if regime is Regime.SUSTAINED:
        return StopRule(min_rounds=5, max_rounds=10, rel_error=0.004, seconds=0.9)
    return StopRule()
