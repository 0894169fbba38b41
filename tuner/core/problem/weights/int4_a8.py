"""Integers of 4 bits for inputs in fp8: code q stands for q - 8 times the float32 factor of its group.

Kernels multiply the integers as e4m3, which represents them exactly: up to 15 units of the smallest subnormal number,
the bits of a number count these units. A byte of a word has the sign and three bits of one code, q - 8 or its
difference to -1, and the three bits of another code that a rotation by 4 bits moves to the same position. So negative
integers lack 1.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tuner.core.problem.weights.int4 import INT4_GROUPS_OF_64, INT4_GROUPS_OF_128, ZERO
from tuner.core.problem.weights.row import Sixteen, WeightRow

#: Bytes of a word, and the positions in a byte: of a code's lowest bit and of its sign, and of those of a code that is
#: rotated; its sign is in the next byte.
_BYTES, _LOWEST, _SIGN, _TURNED_LOWEST, _TURNED_SIGN = 4, 0, 7, 4, 3


def _places(byte: int, *, is_turned: bool) -> tuple[int, ...]:
    """The bits of each code in a word."""
    lowest = 8 * byte + (_TURNED_LOWEST if is_turned else _LOWEST)
    sign = 8 * ((byte + 1) % _BYTES) + _TURNED_SIGN if is_turned else 8 * byte + _SIGN
    return tuple(
        code - ZERO << lowest if code >= ZERO else ZERO - 1 - code << lowest | 1 << sign for code in range(2 * ZERO)
    )


def _placed() -> tuple[tuple[int, ...], ...]:
    """Each pair's first code: bytes 0 and 2 as they are, then rotated; then each pair's second code."""
    firsts = [(byte, turned) for turned in (False, True) for byte in (0, 2)]
    return tuple(_places(byte + half, is_turned=turned) for half in (0, 1) for byte, turned in firsts)


def _figures(_: Sixteen) -> dict[str, str]:
    return {}


def _for_fp8(row: WeightRow) -> WeightRow:
    found = replace(
        row,
        name=f"{row.name}_a8",
        element_bits=8,
        has_float_factors=True,
        placed=_placed(),
        device=Path(__file__).with_suffix(".cuh"),
        figures=_figures,
    )
    return replace(found, layout=f"bytes_by_{found.bundle}")


# Not groups of 32: each product would be a group's only one, and the compiler serialises them.
INT4_FP8_OF_64, INT4_FP8_OF_128 = map(_for_fp8, (INT4_GROUPS_OF_64, INT4_GROUPS_OF_128))
