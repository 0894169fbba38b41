"""A fit to few trials whose forecasts are a formula: the right result is known, and nothing is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.core.model import own_fit
from tuner.core.model.fit import Linear, Trial, Vector, names, to_vector
from tuner.core.model.own_fit import Evaluated, OwnFit, is_better
from tuner.core.model.rates import CATALOGUE_RATES, Rates

START = to_vector(CATALOGUE_RATES)
#: Rates on which forecasts depend: a share, and a time.
SHARE, TIME = names().index("l2_share"), names().index("post_us")
#: The card's true rates: less of one, and more of the other.
CARD = START.copy()
CARD[[SHARE, TIME]] += (-0.2, 0.5)


@dataclass(frozen=True, kw_only=True)
class Known(Trial):
    """A model whose forecast's logarithm is linear in those of the rates."""

    level: float
    powers: Vector

    def log_us(self, at: Vector) -> float:
        return float(self.level + self.powers @ at)


def _forecasts(trials: Sequence[Known], rates: Rates, pool: None) -> list[Any]:
    return [SimpleNamespace(time_us=np.exp(trial.log_us(to_vector(rates)))) for trial in trials]


def _linearise(trials: Sequence[Known], at: Vector, pool: None) -> Linear:
    values = [trial.weight * (np.log(trial.time_us) - trial.log_us(at)) for trial in trials]
    slopes = np.array([-trial.weight * trial.powers for trial in trials])
    no_bytes = np.zeros(len(trials))
    return Linear(
        at=at, residuals=np.array([*values, *no_bytes]), slopes=np.concatenate([slopes, np.zeros_like(slopes)])
    )


@pytest.fixture(autouse=True)
def formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_fit, "forecasts", _forecasts)
    monkeypatch.setattr(own_fit, "linearise", _linearise)


def trials(card: Vector, num_workloads: int = 5, levels: Sequence[float] = (0.0,)) -> list[Known]:
    """30 trials of each workload, with 1 % noise; the workloads' times are scaled by the levels in turn."""
    rng, found = np.random.default_rng(1), list[Known]()
    for workload in range(num_workloads):
        for _ in range(30):
            powers = np.zeros(len(START))
            powers[[SHARE, TIME]] = (-rng.uniform(), rng.uniform())
            one = Known(workload=f"w{workload}", plans=(), time_us=1.0, level=rng.normal(3.0, 0.05), powers=powers)
            log_us = one.log_us(card) + rng.normal(0.0, 0.01) + levels[workload % len(levels)]
            found.append(replace(one, time_us=float(np.exp(log_us))))
    return found


def fit_to(some: Sequence[Known]) -> OwnFit:
    return OwnFit.to(some, CATALOGUE_RATES, None)


def test_ranks_of_workloads_that_were_left_out_get_better_and_rates_move_towards_the_cards() -> None:
    own = fit_to(trials(CARD))
    assert all(one.after > one.before + 0.05 and one.num_trials == 30 for one in own.evaluated())
    rates = own.fitted()
    moved = to_vector(rates) - START
    assert -0.25 < moved[SHARE] < -0.05
    assert 0.2 < moved[TIME] < 0.6
    changed = {one.name: one for one in own.changes(rates)}
    assert {name for name, one in changed.items() if one.is_determined} == {"l2_share", "post_us"}
    assert all(one.change < 1e-6 for one in changed.values() if not one.is_determined)
    assert (changed["post_us"].before, changed["post_us"].after) == pytest.approx((0.5, rates.post_us))


def test_only_differences_within_a_workload_count() -> None:
    """Each workload is scaled by its own factor, which no rate explains."""
    alike, apart = fit_to(trials(CARD)).fitted(), fit_to(trials(CARD, levels=(0.0, 1.0, -0.5))).fitted()
    assert to_vector(apart) == pytest.approx(to_vector(alike))


def test_a_fit_is_kept_if_left_out_workloads_rank_better_and_not_if_the_start_is_right() -> None:
    assert is_better(fit_to(trials(CARD)).evaluated())
    assert not is_better(fit_to(trials(START)).evaluated())


def test_a_gain_of_one_workload_alone_is_none() -> None:
    gains = [Evaluated(workload="", num_trials=9, before=0.8, after=after) for after in (0.99, 0.79, 0.79)]
    assert not is_better(gains)


def test_more_trials_of_a_workload_do_not_make_it_count_more() -> None:
    some = trials(CARD, num_workloads=2)
    first = [one for one in some if one.workload == "w0"]
    once, twice = fit_to(some).fitted(), fit_to([*some, *first]).fitted()
    assert to_vector(twice) == pytest.approx(to_vector(once))


def test_no_workload_is_evaluated_by_a_fit_that_saw_it() -> None:
    """If its times are reversed, so is its rank correlation, exactly."""
    some = trials(CARD)
    turned = [replace(one, time_us=1 / one.time_us) if one.workload == "w2" else one for one in some]
    before, after = fit_to(some).evaluated()[2], fit_to(turned).evaluated()[2]
    assert (before.workload, after.after) == ("w2", pytest.approx(-before.after))
