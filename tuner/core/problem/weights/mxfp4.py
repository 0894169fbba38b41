"""fp4 e2m1 in groups of 32 that share a power of two (e8m0): OCP Microscaling Formats 1.0, as in gpt-oss.

A code has a sign, two exponent bits and one mantissa bit. In each half of a word, three of the four codes are placed
such that a rotation, a shift or nothing moves them to bf16's positions; the fourth uses the remaining bits.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tuner.core.problem.rows.dtype import Array, ArrayModule
from tuner.core.problem.weights.row import POWER_EXCESS, Sixteen, WeightRow

#: Magnitude of a code, by its three lower bits.
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: Standard deviation of a trial's codes.
SPREAD = 2.0
#: The position of each pair's bits: mantissa, exponent, sign. The second pair's sign is in the other half.
_BITS = ((6, 7, 8, 15), (10, 11, 12, 19), (0, 1, 2, 9), (4, 5, 14, 13))
#: The largest stored factor of a group: 2. With larger ones, the converting product would exceed the exponent range.
LARGEST_POWER = POWER_EXCESS + 1


def _figures(wide: Sixteen) -> dict[str, str]:
    """The exponent of a factor that also converts a code's exponent to bf16, which is too small by the difference of
    the biases.
    """
    enlarged = wide.excess - 1
    return {"unit": f"{1 << wide.mantissa | 1 << wide.mantissa + 16:#x}u", "excess": f"{enlarged}u"}


def _values(xp: ArrayModule, codes: Array) -> Array:
    signed = [*MAGNITUDES, *(-one for one in MAGNITUDES)]
    return xp.asarray(signed, dtype=xp.float32)[codes]


def _codes(xp: ArrayModule, normal: Array) -> Array:
    """The nearest code to each number."""
    halfway = [(low + high) / 2 for low, high in pairwise(MAGNITUDES)]
    magnitude = xp.searchsorted(xp.asarray(halfway, dtype=xp.float32), xp.abs(normal * SPREAD).reshape(-1))
    return (magnitude.reshape(normal.shape) + 8 * (normal < 0)).astype(xp.uint8)


MXFP4 = WeightRow(
    name="mxfp4",
    bits=4,
    group=32,
    has_powers=True,
    placed=tuple(
        tuple(sum((code >> i & 1) << bit for i, bit in enumerate(places)) for code in range(16)) for places in _BITS
    ),
    layout="shifted_by_256",
    values=_values,
    codes=_codes,
    spread=SPREAD,
    device=Path(__file__).with_suffix(".cuh"),
    figures=_figures,
)
