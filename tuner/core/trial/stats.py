"""Statistics of timings: pure functions of lists of numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.records import Verdict


def median(values: Sequence[float]) -> float:
    """The middle value.

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("the median of no values")
    return float(np.median(values))


def relative_spread(values: Sequence[float]) -> float:
    """Half the interquartile range divided by the median."""
    low, high = np.percentile(values, [25, 75])
    return float((high - low) / 2 / median(values))


def paired_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """The ratio of the two values of each round.

    Raises:
        ValueError: the two were not taken in the same rounds.
    """
    return [above / below for above, below in zip(numerators, denominators, strict=True)]


def ratio_ci95(ratios: Sequence[float], *, seed: int = 0, num_resamples: int = 2000) -> tuple[float, float]:
    """95 % confidence interval of the median of paired ratios, by the percentile bootstrap.

    Source: Efron, Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.
    """
    rng = np.random.default_rng(seed)
    values = np.asarray(ratios, dtype=np.float64)
    draws = rng.integers(0, values.size, size=(num_resamples, values.size))
    low, high = np.percentile(np.median(values[draws], axis=1), [2.5, 97.5])
    return float(low), float(high)


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value in ascending order, from 1 on; equal values share the mean of their ranks."""
    ordered = sorted(values)
    first, count = dict[float, int](), Counter(values)
    for place, value in enumerate(ordered, start=1):
        first.setdefault(value, place)
    return [first[value] + (count[value] - 1) / 2 for value in values]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rho: how similarly two series order the same things, 1 for the same order and -1 for the reverse. None
    if all values of one series are equal.

    With ties it is the correlation of the ranks. Source: Conover, "Practical Nonparametric Statistics", 3rd ed.,
    section 5.4.

    Raises:
        ValueError: the two have different lengths.
    """
    if len(one) != len(other):
        raise ValueError(f"a rank correlation of {len(one)} and {len(other)} values")
    if len(set(one)) < 2 or len(set(other)) < 2:
        return None
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def selection_regret(predicted: Sequence[float], actual: Sequence[float], count: int) -> float:
    """How far the best of the `count` lowest predicted values is above the best of all, relative to it: the cost of
    relying on the prediction alone. Among equal predictions the first ones are used.

    Raises:
        ValueError: there are no values, or the two have different lengths.
    """
    chosen = sorted(zip(predicted, actual, strict=True), key=lambda pair: pair[0])[:count]
    if not chosen:
        raise ValueError("the regret of choosing nothing")
    return min(value for _, value in chosen) / min(actual) - 1


def median_upper_bound(values: Sequence[float], *, confidence: float = 0.95) -> float:
    """A bound that the true median exceeds with a probability of at most 1 - `confidence`; infinity if there are too
    few values (below 5 for 95 %).

    It is the least order statistic that the sign test allows: at least j of n values are below the true median with the
    binomial probability P(B(n, 1/2) >= j). Source: Conover, "Practical Nonparametric Statistics", 3rd ed., section 3.2.
    """
    n = len(values)
    for j in range(n // 2 + 1, n + 1):
        if sum(math.comb(n, i) for i in range(j, n + 1)) / 2**n <= 1 - confidence:
            return sorted(values)[j - 1]
    return math.inf


def tie_band(speedup: float, ci95: tuple[float, float], least: float) -> float:
    """Relative distance below which two times are a tie: at least `least`, or the distance from the speed-up to the
    end of its interval towards 1. So a kernel that is ahead by more is ahead by `least` with its whole interval."""
    low, high = ci95
    return least + (speedup - low if speedup > 1 else high - speedup)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A compared with B, round by round; above 1 means that A is faster."""

    #: Median over the rounds of B's time / A's time.
    speedup: float
    ci95: tuple[float, float]
    tie_band: float
    #: Whether the medians of all processes are on the same side of 1.
    agrees: bool

    @property
    def is_faster(self) -> bool:
        """Whether A is ahead by more than the tie band, in each process."""
        return self.agrees and self.speedup > 1 + self.tie_band

    @property
    def is_slower(self) -> bool:
        """Whether B is ahead by more than the tie band, in each process."""
        return self.agrees and self.speedup < 1 - self.tie_band


def compare(
    a_us: Sequence[float],
    b_us: Sequence[float],
    process_of_round: Sequence[int] | None = None,
    *,
    min_tie_band: float = FinalsProcedure.min_tie_band,
) -> Comparison:
    """Compares A with B from interleaved rounds; the processes that ran them must agree on which is ahead."""
    ratios = paired_ratios(b_us, a_us)
    processes = list(process_of_round or [0] * len(ratios))
    by_process = [[r for r, p in zip(ratios, processes, strict=True) if p == process] for process in set(processes)]
    ahead = {median(group) > 1 for group in by_process}
    speedup, ci95 = median(ratios), ratio_ci95(ratios)
    band = tie_band(speedup, ci95, min_tie_band)
    return Comparison(speedup=speedup, ci95=ci95, tie_band=band, agrees=len(ahead) == 1)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The outcome of the finals."""

    verdict: Verdict
    #: The kind to use: the fastest, or the simplest of those that tie with it.
    winner: PlanKind
    #: Tie band of the fastest fused kind against the fastest other one.
    tie_band: float


def decide(
    times_us: Mapping[PlanKind, Sequence[float]],
    process_of_round: Sequence[int] | None = None,
    *,
    min_tie_band: float = FinalsProcedure.min_tie_band,
) -> Decision:
    """The verdict from each kind's best candidate, timed in the same interleaved rounds; a kind that failed is absent.

    Raises:
        ValueError: no kind has times.
    """
    if not times_us:
        raise ValueError("no plan kind has times")
    beside = partial(compare, process_of_round=process_of_round, min_tie_band=min_tie_band)
    fused, others = ({k: t for k, t in times_us.items() if k.is_fused is wanted} for wanted in (True, False))
    if not fused:
        return Decision(verdict=Verdict.DO_NOT_FUSE, winner=_simplest(others, beside), tie_band=min_tie_band)
    if not others:
        return Decision(verdict=Verdict.FUSED_WINS, winner=_simplest(fused, beside), tie_band=min_tie_band)
    against = {kind: {other: beside(times, others[other]) for other in others} for kind, times in fused.items()}
    best = against[_fastest(fused)]
    band = best[_fastest(others)].tie_band
    if all(comparison.is_faster for comparison in best.values()):
        ahead = {k: t for k, t in fused.items() if all(comparison.is_faster for comparison in against[k].values())}
        return Decision(verdict=Verdict.FUSED_WINS, winner=_simplest(ahead, beside), tie_band=band)
    if any(comparison.is_slower for comparison in best.values()):
        return Decision(verdict=Verdict.DO_NOT_FUSE, winner=_simplest(others, beside), tie_band=band)
    return Decision(verdict=Verdict.TIE, winner=_simplest(times_us, beside), tie_band=band)


def _fastest(times_us: Mapping[PlanKind, Sequence[float]]) -> PlanKind:
    return min(times_us, key=lambda kind: median(times_us[kind]))


def _simplest(
    times_us: Mapping[PlanKind, Sequence[float]], beside: Callable[[Sequence[float], Sequence[float]], Comparison]
) -> PlanKind:
    """The simplest kind that the fastest one does not beat."""
    fastest = _fastest(times_us)
    return next(
        kind
        for kind in PlanKind  # the simplest first
        if kind == fastest or (kind in times_us and not beside(times_us[fastest], times_us[kind]).is_faster)
    )
