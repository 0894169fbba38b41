"""What the sums of a product must be, and what rounding may add."""

from __future__ import annotations

from typing import Any

from tuner.ops.gemm.op import GemmOp

_FP32_ROUNDOFF = 2.0**-24
#: Standard deviations within which the error of a sum of independent roundings is.
_DEVIATIONS = 12


def reference(xp: Any, op: GemmOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """[m, rows of W] float64 of A [m, k] and W, and their largest error, where each element of A may be off by
    `roundoff` of itself. What it may be `off` at most is not asked: the deviations have room for it.

    The bound takes the roundings as independent. The error of a sum of k products is within 12 standard deviations: 12
    sqrt(sum (a w)^2) (roundoff + sqrt(k) 2^-23).

    Source: Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019 (probabilistic error bounds).
    """
    deviation = xp.sqrt((a.astype(xp.float32) ** 2) @ (w.astype(xp.float32) ** 2).T)
    return a @ w.T, _DEVIATIONS * deviation * (roundoff + op.k**0.5 * 2 * _FP32_ROUNDOFF)
