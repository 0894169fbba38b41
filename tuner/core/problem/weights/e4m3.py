"""fp8 e4m3 without factors of groups: those of channels are a part of the epilogue."""

from __future__ import annotations

from pathlib import Path

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import Array, ArrayModule
from tuner.core.problem.weights.row import WeightRow

#: An element's exponent has 4 bits and its mantissa 3; where these lie in a wider type, and by what that is too small.
_FIGURES = {
    "bf16": {"shift": "4", "other": ">> 4", "size": "0x07F007F0u", "factor": "0x7B807B80u"},  # 2^120
    "f16": {"shift": "7", "other": ">> 1", "size": "0x3F803F80u", "factor": "0x5C005C00u"},  # 2^8
}


def _values(xp: ArrayModule, codes: Array) -> Array:
    return Dtype.FP8_E4M3.row.from_bits(xp, codes)


E4M3 = WeightRow(
    name="e4m3",
    bits=8,
    values=_values,
    codes=Dtype.FP8_E4M3.row.to_bits,
    device=Path(__file__).with_suffix(".cuh"),
    figures=_FIGURES.__getitem__,
)
