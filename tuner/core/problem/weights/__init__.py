"""Formats of weights that are stored in fewer bits than they are multiplied in, one file per format."""

from __future__ import annotations

from enum import StrEnum

from tuner.core.problem.weights.e4m3 import E4M3, E4M3_GROUPS_OF_128
from tuner.core.problem.weights.int4 import (
    INT4_GROUPS_OF_32,
    INT4_GROUPS_OF_64,
    INT4_GROUPS_OF_128,
    INT4_ZEROS_OF_32,
    INT4_ZEROS_OF_64,
    INT4_ZEROS_OF_128,
)
from tuner.core.problem.weights.int4_a8 import INT4_FP8_OF_64, INT4_FP8_OF_128
from tuner.core.problem.weights.mxfp4 import MXFP4
from tuner.core.problem.weights.row import WeightRow

__all__ = ["WeightFormat", "WeightRow"]


class WeightFormat(StrEnum):
    """Formats by their JSON names."""

    row: WeightRow

    def __new__(cls, row: WeightRow | str) -> WeightFormat:
        """The member for a row; if given a name, looks up the existing member."""
        assert isinstance(row, WeightRow), row
        member = str.__new__(cls, row.name)
        member._value_, member.row = row.name, row
        return member

    E4M3 = E4M3
    E4M3_G128 = E4M3_GROUPS_OF_128
    INT4_G32 = INT4_GROUPS_OF_32
    INT4_G64 = INT4_GROUPS_OF_64
    INT4_G128 = INT4_GROUPS_OF_128
    INT4_G32_ZP = INT4_ZEROS_OF_32
    INT4_G64_ZP = INT4_ZEROS_OF_64
    INT4_G128_ZP = INT4_ZEROS_OF_128
    MXFP4 = MXFP4
    INT4_G64_A8 = INT4_FP8_OF_64
    INT4_G128_A8 = INT4_FP8_OF_128
