"""The reference of pairs, and its error bound."""

from __future__ import annotations

from typing import Any

from toy_pairs.op import PairsOp


def reference(xp: Any, op: PairsOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """[m, n] float64 of X [m, 2n], and its error bound: the larger bound of the two elements."""
    pairs = a.reshape(op.m, op.n, 2)
    error = abs(pairs) * roundoff if off is None else off.reshape(op.m, op.n, 2)
    return pairs.max(axis=2), error.max(axis=2).astype(xp.float64)
