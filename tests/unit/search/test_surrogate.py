from __future__ import annotations

import numpy as np
import pytest

from tuner.search.model.surrogate import Prediction, Scales, Surrogate, expected_improvement, squared_distances


def grid(num_rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-3, 3, size=(num_rows, 4))


def truth(rows: np.ndarray) -> np.ndarray:
    return np.sin(rows[:, 0]) + 0.5 * rows[:, 1] + 0.1 * rows[:, 2]


def test_distances_are_those_between_rows() -> None:
    a, b = grid(5), grid(7, seed=1)
    plain = ((a[:, None] - b[None]) ** 2).sum(-1)
    assert squared_distances(a, b) == pytest.approx(plain)


def fit(rows: np.ndarray, values: np.ndarray, scales: Scales | None = None) -> Surrogate:
    return Surrogate(rows, values, np.ones(len(rows)), num_tiling=2, scales=scales)


def test_it_predicts_what_it_observed_and_knows_what_it_does_not_know() -> None:
    rows = grid(60)
    at = fit(rows, truth(rows)).predict(np.vstack([rows, rows[:1] + 100]))
    assert at.mean[:-1] == pytest.approx(truth(rows), abs=0.25)
    assert at.deviation[-1] > 5 * at.deviation[:-1].max()


def test_it_predicts_unseen_rows_better_than_the_mean_does() -> None:
    rows, others = grid(120), grid(200, seed=1)
    mean = fit(rows, truth(rows)).predict(others).mean
    assert np.abs(mean - truth(others)).mean() < 0.3 * np.abs(truth(others) - truth(rows).mean()).mean()


def test_values_that_are_all_alike_are_no_fault() -> None:
    at = fit(grid(3), np.ones(3), Scales()).predict(grid(2, seed=1))
    assert at.mean == pytest.approx([1.0, 1.0])
    assert np.isfinite(at.deviation).all()


def test_failure_is_likely_beside_failures_and_unlikely_elsewhere() -> None:
    rows = grid(60)
    real = (rows[:, 0] < 1).astype(float)
    at = Surrogate(rows, truth(rows), real, num_tiling=2).predict(grid(200, seed=1))
    fails = grid(200, seed=1)[:, 0] > 1
    assert at.success[fails].mean() < 0.5 < 0.8 < at.success[~fails].mean()


def test_a_lower_mean_a_greater_doubt_and_a_surer_success_promise_more() -> None:
    promise = expected_improvement(
        Prediction(
            mean=np.array([1.0, 0.5, 1.0, 1.0]),
            deviation=np.array([0.1, 0.1, 0.5, 0.1]),
            success=np.array([1.0, 1.0, 1.0, 0.5]),
        ),
        best=1.0,
    )
    assert promise[1] > promise[0]
    assert promise[2] > promise[0]
    # The closed form at mean == best is deviation / sqrt(2 pi).
    assert promise[0] == pytest.approx(0.1 / np.sqrt(2 * np.pi))
    assert promise[3] == pytest.approx(promise[0] / 2)
