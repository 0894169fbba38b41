"""What a pooling must be, and what rounding may add."""

from __future__ import annotations

from typing import Any

from toy_operands.common import wide
from toy_operands.pool.op import PoolOp


def reference(xp: Any, op: PoolOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """[m, n] float64: the largest of each window, and how far one of it may be off."""
    return _largest(xp, op, a), _largest(xp, op, wide(xp, a, roundoff, off))


def _largest(xp: Any, op: PoolOp, of: Any) -> Any:
    split = of.reshape(op.pictures, op.out_height, op.stride, op.out_width, op.stride, op.n)
    return split.max(axis=(2, 4)).reshape(op.m, op.n)
