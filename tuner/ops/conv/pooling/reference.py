"""The correct values of a pooling, and their maximum error."""

from __future__ import annotations

from typing import Any

from tuner.ops.conv.pooling.op import Function, PoolingOp

_FP32_ROUNDOFF = 2.0**-24


def reference(xp: Any, op: PoolingOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """[m, channels] float64 of images [pixels, channels], and the maximum error: that of the elements of a window, and
    of an average the rounding of its sum."""
    wide = xp.abs(a) * roundoff if off is None else off.astype(xp.float64)
    if op.function is Function.MAX:
        return _over(xp, op, a, xp.maximum, -xp.inf), _over(xp, op, wide, xp.maximum, 0.0)
    count = op.kernel**2
    rounding = count * _FP32_ROUNDOFF * _over(xp, op, xp.abs(a), xp.add, 0.0) / count
    return _over(xp, op, a, xp.add, 0.0) / count, _over(xp, op, wide, xp.add, 0.0) / count + rounding


def _over(xp: Any, op: PoolingOp, of: Any, join: Any, around: float) -> Any:
    """Joins the elements of each window, one place of it after another, over images with `around` around them."""
    pad = op.padding
    padded = xp.full((op.images, op.height + 2 * pad, op.width + 2 * pad, op.channels), around, dtype=xp.float64)
    padded[:, pad : pad + op.height, pad : pad + op.width] = of.reshape(op.in_shape)
    made = xp.full(op.out_shape, around, dtype=xp.float64)
    for y in range(op.kernel):
        for x in range(op.kernel):
            rows = slice(y, y + op.stride * op.out_height, op.stride)
            columns = slice(x, x + op.stride * op.out_width, op.stride)
            made = join(made, padded[:, rows, columns][:, : op.out_height, : op.out_width])
    return made.reshape(op.m, op.channels)
