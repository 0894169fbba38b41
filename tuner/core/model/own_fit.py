"""A fit of the simulator's rates to a card's own few trials, by how these are ranked.

The differences of logarithms within a workload are fitted: its level does not matter to a search. The errors of a
workload's forecasts are alike, so its trials together count as one observation. How far rates may move from their start
is chosen by leaving groups of workloads out, and 0 is among the choices: then the rates stay as they are.

Sources: Hoerl, Kennard, "Ridge regression", Technometrics 12(1), 1970; for a choice within each evaluation: Varma,
Simon, "Bias in error estimation when using cross-validation for model selection", BMC Bioinformatics 7, 2006.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median

import numpy as np

from tuner.core.model.fit import (
    HUBER,
    Linear,
    Trial,
    Vector,
    forecasts,
    from_vector,
    improve,
    linearise,
    names,
    to_vector,
    weighed,
)  # fmt: skip
from tuner.core.model.rates import Rates
from tuner.core.trial.stats import rank_correlation

#: Standard deviations of a rate's logarithm from its start that are tried; 0: the rates stay.
WIDTHS = (0.0, 0.2, 0.35, 0.7, 1.4)
#: Maximum number of groups that workloads are left out in.
MAX_GROUPS = 6
#: Minimum improvement of the mean rank correlation: less could be due to other trials.
MIN_GAIN = 0.01

Group = tuple[str, ...]


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
        """The absolute logarithm of its ratio."""
        return abs(math.log(self.after / self.before))


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """How well rates rank the trials of a workload that they were not fitted to."""

    workload: str
    num_trials: int
    #: Spearman's, 0 if all forecasts are equal: at the start, and by a fit to the other groups.
    before: float
    after: float


def is_better(evaluated: Sequence[Evaluated]) -> bool:
    """Whether a fit ranks better than its start: on average, and not by a few workloads alone."""
    gain = fmean(one.after - one.before for one in evaluated)
    return gain >= MIN_GAIN and median(e.after for e in evaluated) >= median(e.before for e in evaluated)


@dataclass(frozen=True, kw_only=True)
class OwnFit:
    """Trials of some workloads, and the derivatives of their forecasts at the start."""

    trials: Sequence[Trial]
    linear: Linear
    pool: Executor | None = None
    _known: dict[tuple[str, bytes], float] = field(default_factory=dict)

    @classmethod
    def to(cls, trials: Sequence[Trial], start: Rates, pool: Executor | None) -> OwnFit:
        """One simulation of every trial per rate."""
        trials = weighed(trials)
        return cls(trials=trials, linear=linearise(trials, to_vector(start), pool), pool=pool)

    @cached_property
    def by_workload(self) -> Mapping[str, list[Trial]]:
        """The trials of each workload."""
        found = dict[str, list[Trial]]()
        for trial in self.trials:
            found.setdefault(trial.workload, []).append(trial)
        return found

    @cached_property
    def groups(self) -> list[Group]:
        """Workloads that are left out together."""
        workloads = list(self.by_workload)
        return [tuple(workloads[first::MAX_GROUPS]) for first in range(min(MAX_GROUPS, len(workloads)))]

    def fitted(self) -> tuple[Rates, float]:
        """The fit to all trials, and its width."""
        at, width = self._fit(self.groups)
        return from_vector(at), width

    def changes(self, rates: Rates) -> list[Changed]:
        """From the start to these rates."""
        slopes, start, after = self.linear.slopes.T, np.exp(self.linear.at), np.exp(to_vector(rates))
        rows = zip(names(), start.tolist(), after.tolist(), np.any(slopes, axis=1).tolist(), strict=True)
        return [Changed(name=name, before=one, after=two, is_determined=is_known) for name, one, two, is_known in rows]

    def evaluated(self) -> list[Evaluated]:
        """Each workload with a fit to the other groups, whose width they alone have chosen."""
        found = list[Evaluated]()
        for left_out in self.groups:
            at, _ = self._fit([group for group in self.groups if group != left_out])
            found += [
                Evaluated(
                    workload=name,
                    num_trials=len(self.by_workload[name]),
                    before=self._rank_correlation(name, self.linear.at),
                    after=self._rank_correlation(name, at),
                )
                for name in left_out
            ]
        return found

    def at_width(self, width: float) -> tuple[Rates, float]:
        """The fit to all trials at a given width, and the mean rank correlation of groups left out of such fits."""
        return from_vector(self._step(self.groups, width)), self._left_out(self.groups, width)

    def _fit(self, groups: Sequence[Group]) -> tuple[Vector, float]:
        """The width is that with the best ranks on average; of equal ones the smallest. One group cannot choose."""
        width = max(WIDTHS, key=lambda one: self._left_out(groups, one)) if len(groups) > 1 else 0.0
        return self._step(groups, width), width

    def _left_out(self, groups: Sequence[Group], width: float) -> float:
        """The mean rank correlation of workloads by fits to the other groups."""
        return fmean(
            self._rank_correlation(name, self._step([other for other in groups if other != group], width))
            for group in groups
            for name in group
        )

    def _rank_correlation(self, workload: str, at: Vector) -> float:
        key = (workload, at.tobytes())
        if key not in self._known:
            trials = self.by_workload[workload]
            found = [one.time_us for one in forecasts(trials, from_vector(at), self.pool)]
            self._known[key] = rank_correlation(found, [trial.time_us for trial in trials]) or 0.0
        return self._known[key]

    def _step(self, groups: Collection[Group], width: float) -> Vector:
        if not width:
            return self.linear.at
        used = {name for group in groups for name in group}
        is_used = np.array([trial.workload in used for trial in self.trials])
        return improve(self._within, self.linear.at, is_used, width)

    @cached_property
    def _within(self) -> Linear:
        """Differences from the mean of the workload, robustly. Bytes are left out."""
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
