"""An Optuna sampler over a pool of legal, unseen schedules, ranked by a surrogate's expected improvement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tuner.core.schedule import Schedule
from tuner.search.axes import from_params, to_params
from tuner.search.pool import Pool
from tuner.search.surrogate import Scales, Surrogate, expected_improvement

#: After so many trials of its plan kind the pool's near part and the surrogate's scales are renewed ...
RENEWED_EVERY = 10
#: ... and after so many such periods the part drawn from the whole space.
REDRAWN_EVERY = 4
#: Best schedules whose neighbours join the pool.
NUM_BEST = 4
#: Trials that the surrogate is fitted to, at most: the best half of it, and the others evenly over time.
MAX_FITTED = 160
#: A failed or rejected trial counts as slow as this quantile of the measured ones: bad, not unknown, and not so bad
#: that it hides its good neighbours.
FAILED_QUANTILE = 0.9


class PoolExhausted(Exception):
    """Nothing legal is left untried."""


class PoolSampler(BaseSampler):
    """Takes the pool's schedule of the greatest expected improvement; the same history gives the same schedule."""

    def __init__(self, pool: Pool, axes: dict[str, BaseDistribution]) -> None:
        self._pool = pool
        self._axes = axes
        self._period = -1
        self._drawn: list[Schedule] = []
        self._near: list[Schedule] = []
        self._scales: Scales | None = None
        #: Trial number -> schedule: parameters are decoded once.
        self._schedules: dict[int, Schedule] = {}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All axes at once."""
        return self._axes

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never asked: `sample_relative` gives every axis."""
        raise AssertionError(f"{param_name} is no axis of a schedule")

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next schedule, as parameters.

        Raises:
            PoolExhausted: nothing legal is left untried.
        """
        told = [one for one in study.get_trials(deepcopy=False) if one.state.is_finished()]
        return to_params(self._next(told))

    def _schedule(self, trial: FrozenTrial) -> Schedule:
        schedule = self._schedules.get(trial.number)
        if schedule is None:
            schedule = self._schedules[trial.number] = from_params(trial.params)
        return schedule

    def _next(self, told: Sequence[FrozenTrial]) -> Schedule:
        self._renew(told)
        seen = {self._schedule(trial) for trial in told}
        pool = [schedule for schedule in dict.fromkeys((*self._near, *self._drawn)) if schedule not in seen]
        if not pool:
            raise PoolExhausted
        if not any(trial.state is TrialState.COMPLETE for trial in told):
            return pool[0]
        surrogate, best = self._fit(told, self._scales)
        mean, deviation = surrogate.predict(self._pool.features(pool))
        return pool[int(np.argmax(expected_improvement(mean, deviation, best)))]

    def _renew(self, told: Sequence[FrozenTrial]) -> None:
        """Brings pool and scales to the present period; they depend on what was told before it began, alone."""
        period = len(told) // RENEWED_EVERY
        if period == self._period:
            return
        before = told[: period * RENEWED_EVERY]
        measured = [trial for trial in before if trial.state is TrialState.COMPLETE]
        measured.sort(key=lambda trial: trial.value or math.inf)
        self._near = self._pool.near(self._schedule(trial) for trial in measured[:NUM_BEST])
        if not self._drawn or period // REDRAWN_EVERY != self._period // REDRAWN_EVERY:
            self._drawn = self._pool.drawn(period // REDRAWN_EVERY)
        self._scales = self._fit(before, None)[0].scales if len(measured) > 1 else Scales()
        self._period = period

    def _fit(self, told: Sequence[FrozenTrial], scales: Scales | None) -> tuple[Surrogate, float]:
        """The surrogate of the logarithm of the told values, and the best of these."""
        measured = [math.log(trial.value) for trial in told if trial.value is not None]
        bad = float(np.quantile(measured, FAILED_QUANTILE))
        values = np.array([bad if trial.value is None else math.log(trial.value) for trial in told])
        chosen = _most_telling(values)
        features = self._pool.features(self._schedule(told[index]) for index in chosen)
        return Surrogate(features, values[chosen], self._pool.num_tiling_features, scales), min(measured)


def _most_telling(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Indices of at most `MAX_FITTED` values: the best ones, and the others evenly."""
    if len(values) <= MAX_FITTED:
        return np.arange(len(values))
    order = np.argsort(values, kind="stable")
    best, others = order[: MAX_FITTED // 2], np.sort(order[MAX_FITTED // 2 :])
    evenly = others[np.linspace(0, len(others) - 1, MAX_FITTED - len(best)).astype(int)]
    return np.concatenate([best, evenly])
