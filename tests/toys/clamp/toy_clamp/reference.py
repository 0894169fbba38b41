"""Its reference, and its error bound."""

from __future__ import annotations

from typing import Any

from toy_clamp.op import ClampOp


def reference(xp: Any, op: ClampOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """[m, n] float64, and its error bound: that of X, since the slope of a clamp is at most 1."""
    return xp.clip(a, -op.limit, op.limit), xp.abs(a) * roundoff if off is None else off.astype(xp.float64)
