"""How many candidates are prepared ahead, tested on lists of numbers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tuner.service.runner.ahead import BUDGET_SHARE, NUM_GUESSED, Ahead


def ahead(made_s: Iterable[float] = (), measured_s: Iterable[float] = (), **options: int) -> Ahead:
    made = Ahead(**{"num_places": 15, "num_trials": 600, **options})
    for seconds in made_s:
        made.saw_made(seconds)
    for seconds in measured_s:
        made.saw_measured(seconds)
    return made


@pytest.mark.parametrize(
    ("made_s", "measured_s", "depth"),
    [
        (0.0, 0.1, 2),  # one on the card, one waiting
        (0.9, 1.0, 2),
        (1.0, 1.0, 3),
        (1.0, 0.26, 5),
        (1.0, 0.01, 17),  # every place taken
    ],
)
def test_as_many_are_made_as_the_card_measures_meanwhile(made_s: float, measured_s: float, depth: int) -> None:
    assert ahead([made_s] * 3, [measured_s] * 3).depth == depth


def test_what_was_built_before_does_not_hide_how_long_a_build_takes() -> None:
    assert ahead([0.01, 1.0] * 4, [0.26] * 3).depth == 5


def test_while_the_card_starts_every_place_is_taken() -> None:
    assert ahead().depth == ahead(made_s=[0.1]).depth == 17


def test_a_candidate_that_hung_changes_nothing_and_old_ones_are_forgotten() -> None:
    assert ahead([1.0] * 3, [0.5, 0.5, 20.0]).depth == 4
    assert ahead([9.0] * 50 + [1.0] * 8, [9.0] * 50 + [0.5] * 8).depth == 4


@pytest.mark.parametrize(
    ("num_trials", "depth"), [(1, 1), (5, 1), (6, 2), (12, 4), (20, NUM_GUESSED), (6 * BUDGET_SHARE, 6), (60, 10)]
)
def test_a_small_budget_keeps_something_to_learn_from(num_trials: int, depth: int) -> None:
    assert ahead(num_trials=num_trials).depth == depth


def test_one_place_and_a_limit_bound_it() -> None:
    assert ahead(num_places=1).depth == 3
    assert [ahead(max_ahead=most).depth for most in (0, 1, 7, 100)] == [1, 2, 8, 17]
