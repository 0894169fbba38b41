"""The reference of a depthwise convolution, and its error bound."""

from __future__ import annotations

from typing import Any

from toy_depthwise.op import DepthwiseOp

_FP32_ROUNDOFF = 2.0**-24


def reference(xp: Any, op: DepthwiseOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """[m, n] float64 of H [m, n] and W [n, taps], and the largest error of fp32 sums. Each element of H has an error of
    at most `off` [m, n] or, if that is None, of `roundoff` times itself. Tap after tap over a copy of H with zeros
    around each sequence, unlike the kernel, which never leaves a tile."""
    wide = xp.abs(a) * roundoff if off is None else off.astype(xp.float64)
    values, size, error = (_convolved(xp, op, one, by) for one, by in ((a, w), (abs(a), abs(w)), (wide, abs(w))))
    return values, error + size * (op.taps + 1) * _FP32_ROUNDOFF


def _convolved(xp: Any, op: DepthwiseOp, h: Any, w: Any) -> Any:
    held = h.reshape(op.sequences, op.length, op.n)
    padded = xp.zeros((op.sequences, op.length + 2 * op.radius, op.n), dtype=xp.float64)
    padded[:, op.radius : op.radius + op.length] = held
    return sum(padded[:, j : j + op.length] * w[:, j] for j in range(op.taps)).reshape(op.m, op.n)
