"""The correct sums of a product, and the allowed rounding error."""

from __future__ import annotations

from typing import Any

from tuner.ops.gemm.op import GemmOp

_FP32_ROUNDOFF = 2.0**-24
#: Number of standard deviations that bound the error of a sum of independent rounding errors.
_DEVIATIONS = 12


def reference(xp: Any, op: GemmOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """Sums [m, rows of W] in float64 for A [m, k] and W, and their maximum error if each element of A may have a
    relative error of `roundoff`. The maximum error `off` is not needed: the deviations leave room for it.

    The bound assumes independent rounding errors. The error of a sum of k products is within 12 standard deviations: 12
    sqrt(sum (a w)^2) (roundoff + sqrt(k) 2^-23).

    Source: Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019 (probabilistic error bounds).
    """
    deviation = xp.sqrt((a.astype(xp.float32) ** 2) @ (w.astype(xp.float32) ** 2).T)
    return a @ w.T, _DEVIATIONS * deviation * (roundoff + op.k**0.5 * 2 * _FP32_ROUNDOFF)
