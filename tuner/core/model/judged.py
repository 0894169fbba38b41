"""How well a fit of the simulator forecasts trials: which trials it uses, and how it ranks the others.

`tuner fit` and `benchmarks.simulator.judge` both use it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from tuner.core.model.fit import Fitter, Forecast, Trial, forecasts
from tuner.core.model.rates import Rates
from tuner.core.trial.stats import rank_correlation

Timed = TypeVar("Timed")

#: Steps of the fit to all trials, and of a fit without one workload, after the first step, which all of them share.
NUM_STEPS, NUM_LEFT_OUT_STEPS = 6, 1


def shown(timed: Sequence[Timed], most: int, seed: str, time_us: Callable[[Timed], float]) -> list[Timed]:
    """The trials of a workload that a fit uses: all, or `most` of them, drawn with the seed, two thirds of them from
    the faster half, since those must be ranked correctly."""
    if len(timed) <= most:
        return list(timed)
    by_time, rng = sorted(timed, key=time_us), random.Random(seed)
    half, num_fast = len(by_time) // 2, min(len(by_time) // 2, most * 2 // 3)
    return rng.sample(by_time[:half], num_fast) + rng.sample(by_time[half:], most - num_fast)


def fitted_to_all(fitter: Fitter) -> Rates:
    """A fit to all trials of the fitter."""
    return fitter.without(None, NUM_STEPS)


def fitted_without(fitter: Fitter, workloads: Iterable[str]) -> dict[str, Rates]:
    """For each workload, a fit without its trials."""
    return {name: fitter.without(name, NUM_LEFT_OUT_STEPS) for name in workloads}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How forecasts of a workload match the measurements."""

    forecasts: tuple[Forecast, ...]
    measured_us: tuple[float, ...]

    @classmethod
    def of(cls, trials: Sequence[Trial], rates: Rates, pool: Executor | None = None) -> Judged:
        """Simulates all trials."""
        found = forecasts(trials, rates, pool)
        return cls(forecasts=tuple(found), measured_us=tuple(trial.time_us for trial in trials))

    @property
    def forecast_us(self) -> list[float]:
        """Forecast times, in the order of the trials."""
        return [one.time_us for one in self.forecasts]

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's correlation; None if all times are equal."""
        return rank_correlation(self.forecast_us, self.measured_us)

    @property
    def ratio(self) -> float:
        """Median ratio of forecast to measured time."""
        return median(ours / theirs for ours, theirs in zip(self.forecast_us, self.measured_us, strict=True))
