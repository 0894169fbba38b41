"""What it must be, and what rounding may add."""

from __future__ import annotations

from typing import Any

from toy_clamp.op import ClampOp


def reference(xp: Any, op: ClampOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """[m, n] float64, and how far each may be off: as far as X, since a clamp is nowhere steeper than 1."""
    return xp.clip(a, -op.limit, op.limit), xp.abs(a) * roundoff if off is None else off.astype(xp.float64)
