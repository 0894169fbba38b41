"""An Optuna sampler over a pool of legal, untried schedules, ranked by the expected improvement under a surrogate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from threadpoolctl import ThreadpoolController

from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.search.model.axes import Features, from_params, to_params
from tuner.search.model.pool import Pool, Untried
from tuner.search.model.surrogate import Matrix, Scales, Surrogate, expected_improvement

#: Number of trials of the plan kind after which the pool's neighbours and the surrogate's scales are renewed.
RENEWED_EVERY = 5
#: Number of such periods after which the part of the pool drawn from the whole space is renewed.
REDRAWN_EVERY = 4
#: One choice in `FAR_EVERY` is from the whole pool, the others are from the neighbours of the best. In jobs on cards,
#: 123 of 2,595 neighbours and 31 of 2,630 others were faster than all before (docs/findings/README.md).
FAR_EVERY = 4
#: Number of best schedules whose neighbours are in the pool.
NUM_BEST = 4
#: Maximum number of trials to which the surrogate is fitted: half are the best ones, the others are evenly spaced in
#: time.
MAX_FITTED = 120
#: A failed or rejected trial is treated as this quantile of the measured values, and makes failure more likely around
#: it. With a worse value (0.9), one random failure hid the best schedules next to it.
FAILED_QUANTILE = 0.6


_BLAS = ThreadpoolController()


class PoolExhausted(Exception):
    """No legal schedule is left untried."""


@dataclass(frozen=True, kw_only=True)
class _Observed:
    """A finished trial, decoded once."""

    schedule: Schedule
    features: Features
    #: Natural logarithm of the value; None if it failed.
    log_value: float | None


class PoolSampler(BaseSampler):
    """Takes the pool's schedule with the greatest expected improvement; the same history gives the same schedule."""

    def __init__(self, pool: Pool, axes: dict[str, BaseDistribution]) -> None:
        self._pool = pool
        self._axes = axes
        self._period = -1
        self._drawn: list[Schedule] = []
        self._untried = Untried(pool, [])
        #: How many schedules, at the front of `_untried`, are neighbours of the best.
        self._num_near = 0
        self._scales = Scales()
        self._history: list[_Observed] = []
        #: Numbers of the study's trials that are in `_history`; the study itself is in order of requests.
        self._read_numbers: set[int] = set()
        #: The schedules in progress.
        self._withdrawn: set[Schedule] = set()
        #: The expected improvement of each available schedule, and the number of trials on which it is based.
        self._promise: Matrix = np.zeros(0)
        self._ranked_by = -1
        #: If not empty, choices are made among schedules of these tilings, as long as some are left.
        self.preferred: frozenset[Tiling] = frozenset()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The distributions of all axes, which are sampled at once."""
        return self._axes

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never called: `sample_relative` returns every axis."""
        raise AssertionError(f"{param_name} is not an axis of a schedule")

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next schedule, as parameters.

        Raises:
            PoolExhausted: no legal schedule is left untried.
        """
        finished = (one for one in study.get_trials(deepcopy=False) if one.state.is_finished())
        self._history += [self._read(one) for one in finished if one.number not in self._read_numbers]
        # The matrices are small: more threads would only spin, and take cores from compilers.
        with _BLAS.limit(limits=1, user_api="blas"):
            return self._next()

    def think_ahead(self) -> bool:
        """Draws what the next renewal needs; returns whether there was anything to do."""
        return self._pool.draw_ahead(self._period // REDRAWN_EVERY + 1 if self._drawn else 0)

    def withdraw(self, schedule: Schedule) -> None:
        """Removes a schedule, since it is in progress or was tried."""
        self._withdrawn.add(schedule)
        self._untried.withdraw(schedule)

    def _next(self) -> dict[str, Any]:
        self._renew()
        if not self._untried.is_left.any():
            raise PoolExhausted
        return to_params(self._untried.schedules[self._choice()])

    def _read(self, trial: FrozenTrial) -> _Observed:
        schedule = from_params(trial.params)
        self.withdraw(schedule)
        self._read_numbers.add(trial.number)
        log_value = None if trial.value is None else math.log(trial.value)
        return _Observed(schedule=schedule, features=self._pool.features([schedule])[0], log_value=log_value)

    def _choice(self) -> int:
        """Index of the most promising remaining schedule."""
        count = _num_ranked_by(len(self._history))
        if count != self._ranked_by:
            self._promise = self._rank(self._history[:count])
            self._ranked_by = count
        left = np.flatnonzero(self._untried.is_left)
        near = left[left < self._num_near]
        if len(near) and len(self._withdrawn) % FAR_EVERY:
            left = near
        if self.preferred:
            built = [index for index in left if self._untried.schedules[index].tiling in self.preferred]
            left = np.array(built) if built else left
        return int(left[np.argmax(self._promise[left])])

    def _rank(self, history: Sequence[_Observed]) -> Matrix:
        """[num_schedules] the expected improvement of each available schedule; in pool order if nothing was
        measured."""
        measured = [one.log_value for one in history if one.log_value is not None]
        if not measured:
            return np.zeros(len(self._untried.schedules))
        expected = self._fit(history, self._scales).predict(self._untried.features)
        return expected_improvement(expected, min(measured))

    def _renew(self) -> None:
        """Updates pool and scales to the current period. They depend only on observations from before it began."""
        period = len(self._history) // RENEWED_EVERY
        if period == self._period:
            return
        before = self._history[: period * RENEWED_EVERY]
        ranked = sorted((one.log_value, index) for index, one in enumerate(before) if one.log_value is not None)
        near = self._pool.near(before[index].schedule for _, index in ranked[:NUM_BEST])
        if not self._drawn or period // REDRAWN_EVERY != self._period // REDRAWN_EVERY:
            self._drawn = self._pool.drawn(period // REDRAWN_EVERY)
        self._untried, self._num_near = Untried(self._pool, list(dict.fromkeys((*near, *self._drawn)))), len(near)
        for schedule in self._withdrawn:
            self._untried.withdraw(schedule)
        if len(ranked) > 1:
            self._scales = self._fit(before, None).scales
        self._period, self._ranked_by = period, -1

    def _fit(self, history: Sequence[_Observed], scales: Scales | None) -> Surrogate:
        """A surrogate for the logarithm of the observed values."""
        measured = [one.log_value for one in history if one.log_value is not None]
        bad = float(np.quantile(measured, FAILED_QUANTILE))
        values = np.array([bad if one.log_value is None else one.log_value for one in history])
        chosen = _most_informative(values)
        features = np.array([history[index].features for index in chosen])
        real = np.array([history[index].log_value is not None for index in chosen], dtype=np.float64)
        return Surrogate(features, values[chosen], real, self._pool.num_tiling_features, scales)


def _num_ranked_by(num_observed: int) -> int:
    """How many trials the ranking uses: at first all, later all except the last few, so that choices stay cheap. A
    renewed pool is ranked again."""
    step = 1 if num_observed < 120 else RENEWED_EVERY
    return num_observed - num_observed % step


def _most_informative(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Indices of at most `MAX_FITTED` values: the best ones, and others evenly spaced."""
    if len(values) <= MAX_FITTED:
        return np.arange(len(values))
    order = np.argsort(values, kind="stable")
    best, others = order[: MAX_FITTED // 2], np.sort(order[MAX_FITTED // 2 :])
    evenly = others[np.linspace(0, len(others) - 1, MAX_FITTED - len(best)).astype(int)]
    return np.concatenate([best, evenly])
