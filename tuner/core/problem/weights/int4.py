"""Integers of 4 bits: code q means (q - 8), or (q minus the group's zero point), times the factor of its group."""

from __future__ import annotations

from pathlib import Path

from tuner.core.problem.rows.dtype import Array, ArrayModule
from tuner.core.problem.weights.row import Sixteen, WeightRow, twice

#: The zero point.
ZERO = 8
#: Deviation of the codes of a trial: few are clipped, and all occur.
SPREAD = 3.0


def _figures(wide: Sixteen) -> dict[str, str]:
    """A number whose lowest bits count in ones, and that number plus the zero point."""
    return {"base": twice(wide.counting), "zero": twice(wide.counting + ZERO)}


def _values(xp: ArrayModule, codes: Array) -> Array:
    return codes.astype(xp.float32) - ZERO


def _codes(xp: ArrayModule, normal: Array) -> Array:
    return xp.clip(xp.rint(normal * SPREAD) + ZERO, 0, 15).astype(xp.uint8)


def _raw_values(xp: ArrayModule, codes: Array) -> Array:
    return codes.astype(xp.float32)


def _in_groups_of(size: int, *, has_zeros: bool = False) -> WeightRow:
    return WeightRow(
        name=f"int4_g{size}{'_zp' if has_zeros else ''}",
        bits=4,
        group=size,
        has_zeros=has_zeros,
        values=_raw_values if has_zeros else _values,
        codes=_codes,
        spread=SPREAD,
        device=Path(__file__).with_suffix(".cuh"),
        figures=_figures,
    )


INT4_GROUPS_OF_64, INT4_GROUPS_OF_128 = _in_groups_of(64), _in_groups_of(128)
INT4_ZEROS_OF_64, INT4_ZEROS_OF_128 = _in_groups_of(64, has_zeros=True), _in_groups_of(128, has_zeros=True)
