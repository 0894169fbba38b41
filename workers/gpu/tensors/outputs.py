"""Outputs of launches: memory between canaries, NaN before each checked launch."""

from __future__ import annotations

from typing import Any

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import DtypeRow, OperandRow

from ..launching.launch import fill
from .integrity import Region, region

#: 32 bits that are a NaN, or the largest integer.
_NAN_OR_MOST = 0x7FFFFFFF
_CANARY_BYTE = 0xA5
#: Bytes of one canary, and the unit of its buffer's size.
_CANARY_BYTES, _PADDING_BYTES = 2048, 256


def bits_type(dtype: Dtype) -> Any:
    """Unsigned integers of an element's size, which hold its bits."""
    return cupy.dtype(dtype.row.bits_name)


class GuardedOutput:
    """An output [m, n] with canaries before and after it."""

    def __init__(self, m: int, n: int, dtype: Dtype | DtypeRow) -> None:
        #: A member of `Dtype`; for factors and integers, their row.
        self.dtype = dtype
        row = dtype.row if isinstance(dtype, Dtype) else dtype
        self._nan_bits = row.nan_bits if isinstance(row, OperandRow) else _NAN_OR_MOST
        num_bytes = m * n * row.size_bytes
        padded = -(-num_bytes // _PADDING_BYTES) * _PADDING_BYTES
        self._buffer = cupy.full(padded + 2 * _CANARY_BYTES, _CANARY_BYTE, dtype=cupy.uint8)
        #: Where the canary after it starts: right after the last element.
        self._end = _CANARY_BYTES + num_bytes
        self.bits = self._buffer[_CANARY_BYTES : self._end].view(f"uint{row.bits}").reshape(m, n)

    @property
    def address(self) -> int:
        """Device address of element [0, 0], 256-byte aligned."""
        return int(self.bits.data.ptr)

    def poison(self) -> None:
        """Sets every element to NaN."""
        fill(self.bits, self._nan_bits)

    def surroundings(self, name: str) -> list[Region]:
        """The memory before and after it."""
        front, behind = self._buffer[:_CANARY_BYTES], self._buffer[self._end :]
        return [region(f"memory before {name}", front), region(f"memory after {name}", behind)]
