"""fp8 e4m3: without groups, with channel scales in the epilogue; and in groups of 128, with float32 scales.

Groups also represent blocks of 128 x 128 weights with one scale each: the rows of a block then have the same scales.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import Array, ArrayModule
from tuner.core.problem.weights.row import Sixteen, WeightRow, twice

#: Bits of the mantissa, and the exponent bias.
_MANTISSA, _EXCESS = 3, 7


def _figures(wide: Sixteen) -> dict[str, str]:
    """Positions of exponent and mantissa in a wider type, and the factor by which the resulting value is too small."""
    shift = wide.mantissa - _MANTISSA
    factor = twice(wide.power(wide.excess - _EXCESS))
    return {"shift": str(shift), "other": f">> {8 - shift}", "size": twice(0x7F << shift), "factor": factor}


def _values(xp: ArrayModule, codes: Array) -> Array:
    return Dtype.FP8_E4M3.row.from_bits(xp, codes)


E4M3 = WeightRow(
    name="e4m3",
    bits=8,
    values=_values,
    element=Dtype.FP8_E4M3,
    codes=Dtype.FP8_E4M3.row.to_bits,
    device=Path(__file__).with_suffix(".cuh"),
    figures=_figures,
)
E4M3_GROUPS_OF_128 = replace(E4M3, name="e4m3_g128", group=128, has_float_factors=True, layout="lanes_by_256")
