"""A Gaussian process over schedules: a smooth effect of the tiling plus one of the whole schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

#: Length scales and shares that are tried; the most likely ones are used.
_TILING_SCALES = (1.0, 2.0, 4.0)
_WHOLE_SCALES = (1.5, 3.0)
_TILING_SHARES = (0.3, 0.6, 0.85)
#: Variance of the noise, relative to that of the values.
_NOISE = 0.02


@dataclass(frozen=True, kw_only=True)
class Scales:
    """The smoothness assumptions of the process."""

    #: Distance over which a tiling's effect decays.
    tiling: float = 2.0
    #: Distance over which the whole schedule's effect decays.
    whole: float = 3.0
    #: Share of the variance that the tiling alone explains.
    tiling_share: float = 0.6


_GRID = tuple(
    Scales(tiling=tiling, whole=whole, tiling_share=share)
    for tiling, whole, share in product(_TILING_SCALES, _WHOLE_SCALES, _TILING_SHARES)
)


def squared_distances(a: Matrix, b: Matrix) -> Matrix:
    """[len(a), len(b)] squared Euclidean distances between rows of `a` and rows of `b`."""
    square = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2 * a @ b.T
    positive: Matrix = np.maximum(square, 0)
    return positive


def _matern(square: Matrix, scale: float) -> Matrix:
    """Matern 5/2. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, eq. 4.17."""
    r = np.sqrt(square) * (math.sqrt(5) / scale)
    correlation: Matrix = (1 + r + r * r / 3) * np.exp(-r)
    return correlation


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for some rows; every array is [num_rows]."""

    mean: Matrix
    deviation: Matrix
    #: The probability that there is a value at all.
    success: Matrix


class Surrogate:
    """Fitted to rows of features, whose first `num_tiling` belong to the tiling, to their values, and to whether these
    are `real` (1) or stand for failures (0)."""

    def __init__(
        self, features: Matrix, values: Matrix, real: Matrix, num_tiling: int, scales: Scales | None = None
    ) -> None:
        """If no `scales` are given, the most likely ones are used."""
        self._features = features
        self._num_tiling = num_tiling
        self._mean, self._deviation = float(values.mean()), float(values.std()) or 1.0
        standard = (values - self._mean) / self._deviation
        squares = self._squares(features)
        self.scales = scales or max(_GRID, key=lambda scales: _log_likelihood(_kernel(squares, scales), standard))
        self._whiten = _whitening(_kernel(squares, self.scales))
        self._weights = self._whiten.T @ (self._whiten @ np.column_stack([standard, 1 - real]))

    def _squares(self, rows: Matrix) -> tuple[Matrix, Matrix]:
        """Squared distances from `rows` to the fitted rows: between the tilings, and between the whole schedules."""
        split, fitted = self._num_tiling, self._features
        tiling = squared_distances(rows[:, :split], fitted[:, :split])
        return tiling, tiling + squared_distances(rows[:, split:], fitted[:, split:])

    def predict(self, features: Matrix) -> Prediction:
        """The prediction for each row; far from all failures, success is predicted."""
        cross = _kernel(self._squares(features), self.scales)
        white = self._whiten @ cross.T
        variance = np.maximum(1.0 - (white * white).sum(0), 1e-9)
        mean, failure = (cross @ self._weights).T
        return Prediction(
            mean=self._mean + self._deviation * mean,
            deviation=self._deviation * np.sqrt(variance),
            success=np.clip(1 - failure, 0.01, 1.0),
        )


def _kernel(squares: tuple[Matrix, Matrix], scales: Scales) -> Matrix:
    share = scales.tiling_share
    return share * _matern(squares[0], scales.tiling) + (1 - share) * _matern(squares[1], scales.whole)


def _whitening(kernel: Matrix) -> Matrix:
    """The inverse of the Cholesky factor of the kernel matrix plus noise."""
    lower = np.linalg.cholesky(kernel + _NOISE * np.eye(len(kernel)))
    return np.asarray(np.linalg.inv(lower), dtype=np.float64)


def _log_likelihood(kernel: Matrix, values: Matrix) -> float:
    """The log likelihood up to a constant. Source: Rasmussen and Williams, eq. 2.30."""
    whiten = _whitening(kernel)
    white = whiten @ values
    return float(-0.5 * white @ white + np.log(np.diag(whiten)).sum())


def expected_improvement(at: Prediction, best: float) -> Matrix:
    """The expected improvement of each row on `best`, times its probability of success.

    Source: Jones, Schonlau, Welch, Efficient Global Optimization of Expensive Black-Box Functions (1998), eq. 15.
    """
    z = (best - at.mean) / at.deviation
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    improvement: Matrix = at.success * at.deviation * (z * below + density)
    return improvement
