"""The correct sums of a convolution, and the allowed rounding error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.ops.conv.op import ConvOp

_FP32_ROUNDOFF = 2.0**-24
#: Number of standard deviations that bound the error of a sum of independent rounding errors.
_DEVIATIONS = 12


def reference(xp: Any, op: ConvOp, a: Any, w: Any, *, roundoff: float, off: Any = None) -> tuple[Any, Any]:
    """Sums [m, filters] in float64 for images [pixels, channels] and filters, and their maximum error if each element
    of an image may have a relative error of `roundoff`. Unlike the kernel, it adds one filter element after another,
    over images with zeros around them.

    The bound is that of a product with as many terms: 12 sqrt(sum (a w)^2) (roundoff + sqrt(k) 2^-23).

    Source: Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019 (probabilistic error bounds).
    """
    filters = w.reshape(op.filters, op.kernel**2, op.channels)
    sums = xp.zeros((op.m, op.filters), dtype=xp.float64)
    squares = xp.zeros((op.m, op.filters), dtype=xp.float32)
    for place, pixels in enumerate(_places(xp, op, a)):
        sums += pixels @ filters[:, place].T
        squares += (pixels.astype(xp.float32) ** 2) @ (filters[:, place].astype(xp.float32) ** 2).T
    return sums, _DEVIATIONS * xp.sqrt(squares) * (roundoff + op.k**0.5 * 2 * _FP32_ROUNDOFF)


def _places(xp: Any, op: ConvOp, a: Any) -> Iterator[Any]:
    """For each filter element, the [m, channels] inputs that the output pixels read there."""
    around = op.padding
    padded = xp.zeros((op.images, op.height + 2 * around, op.width + 2 * around, op.channels), dtype=a.dtype)
    inside = a.reshape(op.images, op.height, op.width, op.channels)
    padded[:, around : around + op.height, around : around + op.width] = inside
    for y in range(op.kernel):
        for x in range(op.kernel):
            rows = slice(y, y + op.stride * op.out_height, op.stride)
            columns = slice(x, x + op.stride * op.out_width, op.stride)
            yield padded[:, rows, columns][:, : op.out_height, : op.out_width].reshape(op.m, op.channels)
