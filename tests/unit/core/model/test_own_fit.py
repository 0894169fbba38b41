"""A fit to few trials, with forecasts that are a formula: so what is right is known."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.core.model import own_fit
from tuner.core.model.fit import Linear, Trial, Vector, names, to_vector
from tuner.core.model.own_fit import OwnFit
from tuner.core.model.rates import CATALOGUE_RATES, Rates

START = to_vector(CATALOGUE_RATES)
#: Rates that forecasts depend on: a share, and a time.
SHARE, TIME = names().index("l2_share"), names().index("post_us")
#: What the card of these tests attains.
TRUE = START.copy()
TRUE[SHARE] -= 0.2
TRUE[TIME] += 0.5


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """Of five workloads, each off by a factor of its own: how a trial depends on the rates is drawn."""
    rng, found, powers = np.random.default_rng(1), list[Trial](), dict[int, Vector]()
    for workload in range(5):
        for _ in range(30):
            power = np.zeros(len(START))
            power[SHARE], power[TIME], level = -rng.uniform(), rng.uniform(), rng.normal(3.0, 0.02)
            time_us = np.exp(level + power @ TRUE + rng.normal(0, 0.01) + 0.3 * workload)
            found.append(Trial(workload=f"w{workload}", plans=(), time_us=float(time_us), weight=len(found) + 1))
            powers[len(found)] = np.array([level, *power])

    def forecasts(some: Sequence[Trial], rates: Rates, pool: None) -> list[Any]:
        at = np.array([1.0, *to_vector(rates)])
        return [SimpleNamespace(time_us=float(np.exp(powers[round(trial.weight)] @ at))) for trial in some]

    def linearise(some: Sequence[Trial], at: Vector, pool: None) -> Linear:
        of = np.array([powers[round(trial.weight)] for trial in some])
        values = np.log([trial.time_us for trial in some]) - of @ np.array([1.0, *at])
        weights = np.array([trial.weight for trial in some])[:, None]
        slopes = -weights * of[:, 1:]
        return Linear(
            at=at,
            residuals=np.concatenate([weights[:, 0] * values, np.zeros(len(some))]),
            slopes=np.concatenate([slopes, np.zeros_like(slopes)]),
        )

    monkeypatch.setattr(own_fit, "forecasts", forecasts)
    monkeypatch.setattr(own_fit, "linearise", linearise)
    monkeypatch.setattr(own_fit, "weighed", lambda some: some)  # a trial's weight is its number here
    return found
