"""Which axes of a schedule determined the times of a search, by Optuna's PED-ANOVA, and each trial's values on them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from tuner.core.schedule.candidate import Candidate
from tuner.search.model.axes import to_params

#: With fewer trials, no axis is judged.
FEWEST_TRIALS = 10
#: The name of the plan kind, which is treated as an axis, too.
PLAN_KIND = "plan_kind"


@dataclass(frozen=True, kw_only=True)
class AxisImportances:
    """The effect of the schedule axes on the times of a search."""

    #: Shares of the axes that varied, largest first; they add up to 1. Empty if there are too few trials.
    shares: dict[str, float]
    #: [num_trials] the numbers of the used trials, and the library's time divided by theirs.
    numbers: tuple[int, ...]
    speedups: tuple[float, ...]
    #: By axis: [num_trials] the value of each trial.
    values: dict[str, tuple[Any, ...]]


def axis_importances(trials: Sequence[tuple[int, Candidate, float]]) -> AxisImportances:
    """Analyses (number, candidate, speed-up) of measured trials of generated kernels; axes without variation are left
    out.

    It takes about a millisecond per trial.
    """
    params = [_params(candidate) for _, candidate, _ in trials]
    names = sorted({name for one in params for name in one})
    values = {name: tuple(one.get(name) for one in params) for name in names}
    varied = {name: column for name, column in values.items() if len(set(column)) > 1}
    shares = _shares(varied, [math.log(speedup) for _, _, speedup in trials])
    order = sorted(varied, key=lambda name: (-shares.get(name, 0.0), name))
    return AxisImportances(
        shares={name: shares[name] for name in order} if shares else {},
        numbers=tuple(number for number, _, _ in trials),
        speedups=tuple(speedup for _, _, speedup in trials),
        values={name: varied[name] for name in order},
    )


def _params(candidate: Candidate) -> dict[str, Any]:
    params = to_params(candidate.schedule) if candidate.schedule else {}
    return {PLAN_KIND: str(candidate.plan_kind), **params}


def _shares(varied: dict[str, tuple[Any, ...]], gains: Sequence[float]) -> dict[str, float]:
    """The axes' shares as Optuna computes them; empty if there is too little data."""
    if len(gains) < FEWEST_TRIALS or not varied:
        return {}
    # An axis has few legal values with uneven steps, so each value is treated as a separate choice.
    axes = {name: CategoricalDistribution(sorted(set(column), key=str)) for name, column in varied.items()}
    study = optuna.create_study(direction="maximize")
    for index, gain in enumerate(gains):
        params = {name: column[index] for name, column in varied.items()}
        study.add_trial(create_trial(params=params, distributions=dict(axes), value=gain))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
