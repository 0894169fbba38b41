"""The reference of a pooling, and its error bound."""

from __future__ import annotations

from typing import Any

from toy_operands.common import wide
from toy_operands.pool.op import PoolOp


def reference(xp: Any, op: PoolOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """[m, n] float64: the maximum of each window, and the largest error of its elements."""
    return _largest(xp, op, a), _largest(xp, op, wide(xp, a, roundoff, off))


def _largest(xp: Any, op: PoolOp, of: Any) -> Any:
    split = of.reshape(op.pictures, op.out_height, op.stride, op.out_width, op.stride, op.n)
    return split.max(axis=(2, 4)).reshape(op.m, op.n)
