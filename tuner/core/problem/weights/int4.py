"""Integers of 4 bits: code q stands for q - 8, or for q minus the group's zero point, times the factor of its group.

A word has four codes in each half. Two of them are extracted with one mask instruction each, and the other two likewise
after rotating the word by 8 bits. In each such pair, one code forms the lowest bits of a number that counts in steps.
The other one has its sign at the sign position of a number, and q - 8, or its difference to -1, in three bits of a
subnormal number, followed by half a step; so it is 1/2 above q - 8.
"""

from __future__ import annotations

from pathlib import Path

from tuner.core.problem.rows.dtype import Array, ArrayModule
from tuner.core.problem.weights.row import Sixteen, WeightRow, twice

#: The zero point.
ZERO = 8
#: Standard deviation of a trial's codes: few are clipped, and all occur.
SPREAD = 3.0
#: The lowest of the three bits of a code in a subnormal number, and the number of bits by which a word is rotated.
_LOWEST, _TURN = 4, 8


def _placed() -> tuple[tuple[int, ...], ...]:
    """The bits of each pair of codes, in order: the subnormal number, the lowest bits, and both after the rotation."""
    small = [code - ZERO << _LOWEST if code >= ZERO else ZERO - 1 - code << _LOWEST | 1 << 15 for code in range(16)]
    plain = list(range(16))
    # A rotation to the right brings bits from _TURN positions further up; a half's upper bits come from the other half.
    turned = [[bits << _TURN for bits in codes] for codes in (small, plain)]
    return tuple(map(tuple, (small, plain, *turned)))


def _figures(wide: Sixteen) -> dict[str, str]:
    """Constants for a number whose lowest bits count ones, in steps as large as the largest factor makes subnormal
    steps."""
    step = 2.0 ** (_LOWEST + 1 - wide.mantissa)
    counting = 2**wide.mantissa
    return {
        "base": twice(wide.counting),
        "largest": twice(wide.power(wide.excess)),
        "step": twice(wide.of_value(step)),
        "less_step": twice(wide.of_value(-step)),
        "steps": f"{1 / step}f",
        "raised": twice(wide.of_value(-(counting + ZERO) * step)),
        "centre": twice(wide.of_value((counting + ZERO) * step)),
        "half": twice(wide.of_value(-step / 2)),
        "one": twice(wide.power(0)),
    }


def _values(xp: ArrayModule, codes: Array) -> Array:
    return codes.astype(xp.float32) - ZERO


def _codes(xp: ArrayModule, normal: Array) -> Array:
    return xp.clip(xp.rint(normal * SPREAD) + ZERO, 0, 15).astype(xp.uint8)


def _raw_values(xp: ArrayModule, codes: Array) -> Array:
    return codes.astype(xp.float32)


#: The smallest group size for which the factors of a bundle of columns fit in what a thread reads at once.
_SMALLEST = 32


def _in_groups_of(size: int, *, has_zeros: bool = False) -> WeightRow:
    return WeightRow(
        name=f"int4_g{size}{'_zp' if has_zeros else ''}",
        bits=4,
        group=size,
        has_zeros=has_zeros,
        placed=_placed(),
        layout="turned" if size == _SMALLEST else "turned_by_256",
        values=_raw_values if has_zeros else _values,
        codes=_codes,
        spread=SPREAD,
        device=Path(__file__).with_suffix(".cuh"),
        figures=_figures,
    )


INT4_GROUPS_OF_32, INT4_GROUPS_OF_64, INT4_GROUPS_OF_128 = map(_in_groups_of, (32, 64, 128))
INT4_ZEROS_OF_32, INT4_ZEROS_OF_64, INT4_ZEROS_OF_128 = (_in_groups_of(size, has_zeros=True) for size in (32, 64, 128))
