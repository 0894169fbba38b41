"""What a depthwise convolution must be, and what rounding may add."""

from __future__ import annotations

from typing import Any

from toy_depthwise.op import DepthwiseOp

_FP32_ROUNDOFF = 2.0**-24


def reference(xp: Any, op: DepthwiseOp, a: Any, w: Any, *, roundoff: float) -> tuple[Any, Any]:
    """[m, n] float64 of H [m, n] and W [n, taps], and the largest error of fp32 sums of which each element of H may be
    off by `roundoff` of itself. Tap after tap over a copy of H with zeros around each sequence: another way than the
    kernel's, which never leaves a tile."""
    radius, held = op.radius, a.reshape(op.sequences, op.length, op.n)
    padded = xp.zeros((op.sequences, op.length + 2 * radius, op.n), dtype=xp.float64)
    padded[:, radius : radius + op.length] = held
    terms = [padded[:, j : j + op.length] * w[:, j] for j in range(op.taps)]
    values, size = sum(terms), sum(map(abs, terms))
    error = size * (roundoff + (op.taps + 1) * _FP32_ROUNDOFF)
    return values.reshape(op.m, op.n), error.reshape(op.m, op.n)
