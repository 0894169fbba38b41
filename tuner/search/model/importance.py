"""Which axes of a schedule decided the times of a search, by Optuna's PED-ANOVA, and each trial's values on them."""

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

#: Fewer trials say nothing of an axis.
FEWEST_TRIALS = 10
#: The plan kind is an axis as well.
PLAN_KIND = "plan_kind"


@dataclass(frozen=True, kw_only=True)
class AxisImportances:
    """What the axes of a search's schedules had to do with its times."""

    #: Shares of the axes that varied, the largest first; they add up to 1. Empty where the trials are too few.
    shares: dict[str, float]
    #: [num_trials] the numbers of the trials that this rests on, and the library's time over theirs.
    numbers: tuple[int, ...]
    speedups: tuple[float, ...]
    #: By axis: [num_trials] the trials' values.
    values: dict[str, tuple[Any, ...]]


def axis_importances(trials: Sequence[tuple[int, Candidate, float]]) -> AxisImportances:
    """Judges (number, candidate, speed-up) of measured trials of ours; axes on which they agree are left out.

    It costs about a millisecond of a core for each trial.
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
    """The shares by Optuna; none where there is too little to tell."""
    if len(gains) < FEWEST_TRIALS or not varied:
        return {}
    # Few values of an axis are legal, and they are no even steps: each is a choice of its own.
    axes = {name: CategoricalDistribution(sorted(set(column), key=str)) for name, column in varied.items()}
    study = optuna.create_study(direction="maximize")
    for index, gain in enumerate(gains):
        params = {name: column[index] for name, column in varied.items()}
        study.add_trial(create_trial(params=params, distributions=dict(axes), value=gain))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
