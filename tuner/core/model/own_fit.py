"""Fits the simulator's rates to a card's own few trials, and judges the fit by how well it ranks them.

The differences of logarithms within a workload are fitted: its level does not matter to a search. The forecasts of a
workload have similar errors, so its trials together are one observation. The fit takes one step of damped least squares
from the start; its benefit is measured on workloads that it did not use. The width of the penalty is that of every fit:
three to five workloads are too few to choose it (benchmarks/results/h200/own_fit_widths.json).

Source: Hoerl, Kennard, "Ridge regression", Technometrics 12(1), 1970.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median

import numpy as np

from tuner.core.model.fit import (
    HUBER,
    PENALTY_WIDTH,
    Linear,
    Trial,
    forecasts,
    from_vector,
    improve,
    linearise,
    names,
    to_vector,
    weighed,
)
from tuner.core.model.rates import Rates
from tuner.core.trial.stats import rank_correlation

#: Minimum improvement of the mean rank correlation: less could be due to other trials.
MIN_GAIN = 0.01


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A rate, before and after a fit."""

    name: str
    before: float
    after: float
    #: Whether any trial's forecast depends on it.
    is_determined: bool

    @property
    def change(self) -> float:
        """The absolute value of the logarithm of the two rates' ratio."""
        return abs(math.log(self.after / self.before))


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """How well rates rank the trials of a workload that they were not fitted to."""

    workload: str
    num_trials: int
    #: Spearman's correlation at the start, and with a fit to other workloads; 0 if all forecasts are equal.
    before: float
    after: float


def is_better(evaluated: Sequence[Evaluated]) -> bool:
    """Whether a fit ranks better than its start: on average, and not only because of a few workloads."""
    gain = fmean(one.after - one.before for one in evaluated)
    return gain >= MIN_GAIN and median(e.after for e in evaluated) >= median(e.before for e in evaluated)


@dataclass(frozen=True, kw_only=True)
class OwnFit:
    """Trials of some workloads, and the derivatives of their forecasts at the start."""

    trials: Sequence[Trial]
    linear: Linear
    pool: Executor | None = None

    @classmethod
    def to(cls, trials: Sequence[Trial], start: Rates, pool: Executor | None) -> OwnFit:
        """Simulates every trial once per rate."""
        trials = weighed(trials)
        return cls(trials=trials, linear=linearise(trials, to_vector(start), pool), pool=pool)

    @cached_property
    def by_workload(self) -> Mapping[str, list[Trial]]:
        """The trials of each workload."""
        found = dict[str, list[Trial]]()
        for trial in self.trials:
            found.setdefault(trial.workload, []).append(trial)
        return found

    def fitted(self, width: float = PENALTY_WIDTH) -> Rates:
        """The fit to all trials."""
        return self._fitted_to(self.by_workload, width)

    def evaluated(self, width: float = PENALTY_WIDTH) -> list[Evaluated]:
        """How each workload is ranked by a fit to the others."""
        workloads = set(self.by_workload)
        return [self.ranked(of, self._fitted_to(workloads - {name}, width)) for name, of in self.by_workload.items()]

    def ranked(self, trials: Sequence[Trial], rates: Rates) -> Evaluated:
        """How a workload's trials are ranked by the rates at the start, and by `rates`."""
        times_us = [trial.time_us for trial in trials]
        before, after = (
            rank_correlation([one.time_us for one in forecasts(trials, each, self.pool)], times_us) or 0.0
            for each in (from_vector(self.linear.at), rates)
        )
        return Evaluated(workload=trials[0].workload, num_trials=len(trials), before=before, after=after)

    def changes(self, rates: Rates) -> list[Changed]:
        """The changes of the rates from the start."""
        slopes, start, after = self.linear.slopes.T, np.exp(self.linear.at), np.exp(to_vector(rates))
        rows = zip(names(), start.tolist(), after.tolist(), np.any(slopes, axis=1).tolist(), strict=True)
        return [Changed(name=name, before=one, after=two, is_determined=is_known) for name, one, two, is_known in rows]

    def _fitted_to(self, workloads: Collection[str], width: float) -> Rates:
        is_used = np.array([trial.workload in workloads for trial in self.trials])
        return from_vector(improve(self._within, self.linear.at, is_used, width))

    @cached_property
    def _within(self) -> Linear:
        """The linear model of differences from each workload's robust mean. Bytes are left out."""
        weights = np.array([trial.weight for trial in self.trials])
        num_trials = len(self.trials)
        values = self.linear.residuals[:num_trials] / weights
        slopes = self.linear.slopes[:num_trials] / weights[:, None]
        counts = np.zeros(num_trials)
        for name in self.by_workload:
            rows = np.array([trial.workload == name for trial in self.trials])
            far = np.abs(values[rows] - np.median(values[rows]))
            shares = weights[rows] ** 2 * np.minimum(1.0, HUBER / np.maximum(far, 1e-9))
            values[rows] -= np.average(values[rows], weights=shares)
            slopes[rows] -= np.average(slopes[rows], axis=0, weights=shares)
            counts[rows] = 1 / np.sum(weights[rows] ** 2)
        nothing = np.zeros(num_trials)
        return replace(
            self.linear,
            residuals=np.concatenate([values * weights, nothing]),
            slopes=np.concatenate([slopes * weights[:, None], np.zeros_like(slopes)]),
            counts=np.concatenate([counts, nothing]),
        )
