"""Fits the simulator's rates to measured trials: damped least squares on the logarithms of times and bytes.

Rates are varied on a logarithmic scale, so they stay positive, and a penalty keeps them near their starting point: a
rate that the trials do not determine stays unchanged. Derivatives are differences of simulations, which take a minute
for a few hundred trials.

Source: Levenberg, "A method for the solution of certain non-linear problems in least squares", Quart. Appl. Math. 2,
1944; weights by Huber, "Robust estimation of a location parameter", Ann. Math. Stat. 35(1), 1964.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.core.model.forecast import PROGRAMMATIC_GAIN_US
from tuner.core.model.rates import CATALOGUE_RATES, EngineRates, Rates
from tuner.core.model.simulate import simulate
from tuner.core.plan.table.header import STATIC
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.tiling import Engine

Vector = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Standard deviation of a rate's logarithm from its starting point, and the step for its derivative.
PENALTY_WIDTH = 0.7
STEP = 0.1
#: Residuals beyond this, as logarithms of times, have less weight.
HUBER = 0.15
#: Weight of a residual of the DRAM's bytes, relative to one of the time.
BYTES_WEIGHT = 0.5
#: Maximum change of a rate in one step.
MAX_MOVE = 0.5
#: Larger plans are not used for fitting, since they take longest to simulate.
MAX_FITTED_TASKS = 2000
#: Shares are limited to 1; the DRAM's share to the measured rate of one long read on an H200. The start of a launch is
#: limited to the part of the fastest schedules' times that their traces leave, so that it does not absorb losses of the
#: tasks.
MOST = {
    **dict.fromkeys(
        ("tensor_share", "smem_share", "port_share", "exposed_share", "l2_share", "l2_capacity_share"), 1.0
    ),
    "dram_share": 0.94,
    "launch_us": 5.5,
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A measured schedule."""

    #: Name of its workload; a fit uses either all or none of a workload's trials.
    workload: str
    #: Plans of its launches, in sequence.
    plans: tuple[VerifiedPlan, ...]
    time_us: float
    #: Bytes read from and written to DRAM in one run after a flush, if they were counted.
    dram_bytes: float | None = None
    #: Whether a launch begins while the one before it ends.
    is_programmatic: bool = False
    #: The weight of its residuals.
    weight: float = 1.0

    @property
    def num_tasks(self) -> int:
        """Tasks of all launches."""
        return sum(plan.plan.num_tasks for plan in self.plans)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The simulator's forecast for a trial."""

    time_us: float
    #: As counters report them: without bytes that are still in the L2 at the end.
    dram_bytes: float


def forecast(trial: Trial, rates: Rates) -> Forecast:
    """The forecast for a trial, from one simulation of each launch as in a search."""
    timelines = [simulate(plan, rates, is_apart=trial.is_programmatic) for plan in trial.plans]
    saved_us = PROGRAMMATIC_GAIN_US * len(timelines) if trial.is_programmatic else 0.0
    return Forecast(
        time_us=sum(timeline.makespan_us for timeline in timelines) - saved_us,
        dram_bytes=sum(timeline.dram_bytes - timeline.late_write_bytes for timeline in timelines),
    )


def names() -> list[str]:
    """Names of the fitted rates: ``dram_share``, ``mma.tensor_share`` and so on."""
    return list(_flat(Rates))


def _flat(of: type[Any]) -> Iterator[str]:
    for field in fields(of):
        if field.name in ("mma", "wgmma"):
            yield from (f"{field.name}.{inner.name}" for inner in fields(EngineRates))
        else:
            yield field.name


def to_vector(rates: Rates) -> Vector:
    """The logarithms of the rates, in the order of `names`."""
    data = rates.to_json()
    values = [data[name] if "." not in name else data[name.split(".")[0]][name.split(".")[1]] for name in names()]
    return np.log(np.array(values, dtype=np.float64))


def from_vector(vector: Vector) -> Rates:
    """Inverse of `to_vector`; rates are clipped to their maximum."""
    data: dict[str, Any] = {"mma": {}, "wgmma": {}}
    for name, value in zip(names(), np.exp(vector).tolist(), strict=True):
        *engine, rate = name.split(".")
        (data[engine[0]] if engine else data)[rate] = min(value, MOST.get(rate, math.inf))
    return Rates.from_json(data)


def forecasts(trials: Sequence[Trial], rates: Rates, pool: Executor | None = None) -> list[Forecast]:
    """Forecasts of all trials, in the processes of a pool if one is given."""
    same = [rates] * len(trials)
    if pool is None:
        return list(map(forecast, trials, same))
    return list(pool.map(forecast, trials, same, chunksize=max(1, len(trials) // 16)))


def residuals(trials: Sequence[Trial], found: Iterable[Forecast]) -> Vector:
    """[times, then bytes] logarithm of measured over forecast; 0 if bytes were not counted."""
    pairs = list(zip(trials, found, strict=True))
    times = [trial.weight * math.log(trial.time_us / one.time_us) for trial, one in pairs]
    counted = [t.weight * math.log(t.dram_bytes / one.dram_bytes) if t.dram_bytes else 0.0 for t, one in pairs]
    return np.array([*times, *(BYTES_WEIGHT * value for value in counted)])


def matters(name: str, trial: Trial) -> bool:
    """Whether a rate affects the forecast of a trial."""
    tiling = trial.plans[0].graph.tiling
    *engine, rate = name.split(".")
    if engine and engine[0] != tiling.engine:
        return False
    if rate in ("sum_us_per_kib", "arrival_us"):
        return bool(tiling.split_k)
    if rate == "smem_share":
        return tiling.engine is Engine.MMA
    return any(one.plan.assignment != STATIC for one in trial.plans) if rate == "ticket_us" else True


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The trials' residuals at some rates, and their derivatives."""

    at: Vector
    residuals: Vector
    #: [residual, rate]
    slopes: npt.NDArray[np.float64]
    #: The number of observations that each residual represents; None if it is one for all.
    counts: Vector | None = None


def linearise(trials: Sequence[Trial], at: Vector, pool: Executor | None = None) -> Linear:
    """The residuals and their derivatives, from one simulation of every trial per rate and one more."""
    here = residuals(trials, forecasts(trials, from_vector(at), pool))
    slopes = np.zeros((len(here), len(at)))
    for index, name in enumerate(names()):
        step = STEP if from_vector(at) != from_vector(_moved(at, index, STEP)) else -STEP
        moved = [i for i, trial in enumerate(trials) if matters(name, trial)]
        chosen = [trials[i] for i in moved]
        there = residuals(chosen, forecasts(chosen, from_vector(_moved(at, index, step)), pool))
        rows = [*moved, *(len(trials) + i for i in moved)]
        slopes[rows, index] = (there - here[rows]) / step
    return Linear(at=at, residuals=here, slopes=slopes)


def _moved(at: Vector, index: int, step: float) -> Vector:
    moved = at.copy()
    moved[index] += step
    return moved


def improve(linear: Linear, start: Vector, is_used: Flags, width: float = PENALTY_WIDTH) -> Vector:
    """The best rates according to the linear model of the used trials; `start` is the centre of the penalty, and
    `width` the standard deviation of a rate's logarithm."""
    used = np.concatenate([is_used, is_used])
    values, slopes = linear.residuals[used], linear.slopes[used]
    scale = _huber_weights(values) / HUBER**2 * (1.0 if linear.counts is None else linear.counts[used])
    normal = slopes.T @ (slopes * scale[:, None]) + np.eye(len(start)) / width**2
    right = -slopes.T @ (scale * values) - (linear.at - start) / width**2
    most = np.log([MOST.get(name.split(".")[-1], math.inf) for name in names()])
    changed: Vector = linear.at + np.clip(_solve_below(normal, right, most - linear.at), -MAX_MOVE, MAX_MOVE)
    return changed


def _huber_weights(values: Vector) -> Vector:
    weights: Vector = np.minimum(1.0, HUBER / np.maximum(np.abs(values), 1e-9))
    return weights


def _solve_below(normal: npt.NDArray[np.float64], right: Vector, most: Vector) -> Vector:
    """The solution of least squares whose values are at most `most`: values that exceed it are set to it, and the
    others are solved again."""
    found, is_free = np.zeros(len(right)), np.ones(len(right), dtype=bool)
    while True:
        free = np.flatnonzero(is_free)
        rest = right - normal[:, ~is_free] @ found[~is_free]
        found[free] = np.linalg.solve(normal[np.ix_(free, free)], rest[free])
        is_over = is_free & (found > most)
        if not is_over.any():
            return found
        found[is_over] = most[is_over]
        is_free &= ~is_over


def loss(values: Vector) -> float:
    """Huber's loss of the mean residual."""
    size = np.abs(values)
    return float(np.mean(np.where(size <= HUBER, 0.5 * values**2, HUBER * (size - 0.5 * HUBER))))


def weighed(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with their weights: a schedule that takes four times as long as its workload's best one has half the
    weight, since the fast ones must be ranked correctly."""
    best = dict[str, float]()
    for trial in trials:
        best[trial.workload] = min(trial.time_us, best.get(trial.workload, math.inf))
    return [replace(trial, weight=math.sqrt(best[trial.workload] / trial.time_us)) for trial in trials]


class Fitter:
    """Fits to the same trials: to all of them, and without one workload."""

    def __init__(self, trials: Sequence[Trial], pool: Executor | None) -> None:
        """Starts from the catalogue's rates."""
        self._trials = [trial for trial in trials if trial.num_tasks <= MAX_FITTED_TASKS]
        self._pool = pool
        self._start = to_vector(CATALOGUE_RATES)
        self._first = linearise(self._trials, self._start, pool)

    def without(self, workload: str | None, num_steps: int) -> Rates:
        """The fit to all workloads except `workload`; `num_steps` does not include the first step."""
        kept = np.array([trial.workload != workload for trial in self._trials])
        trials = [trial for trial in self._trials if trial.workload != workload]
        at = improve(self._first, self._start, kept)
        for _ in range(num_steps):
            at = improve(linearise(trials, at, self._pool), self._start, np.ones(len(trials), dtype=bool))
        return from_vector(at)
