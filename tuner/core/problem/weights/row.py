"""What the program has to know of a format of weights, and how a kernel reads them.

A weight is a code of few bits, and with groups so many codes of a row share a factor. A kernel multiplies elements of
16 bits, into which it converts codes in registers. So codes lie as tensor cores take the elements: of a row 16 bytes
after 16 bytes, in each four words, word c for lane c of four. A word has a code for each of two columns in each of its
halves, side by side for each pair of columns that the lane needs: 2 c and 2 c + 1, then 8 further, then 16 further.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", fragments of A of wgmma m64k16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log2
from pathlib import Path
from string import Template
from typing import Self

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import Array, ArrayModule, OperandRow

#: Bits that a thread is given at once for each of four lanes, and those of an element that is multiplied.
_CHUNK_BITS, _WORD_BITS, _ELEMENT_BITS = 128, 32, 16


@dataclass(frozen=True, kw_only=True)
class Sixteen:
    """How an element of 16 bits has its numbers."""

    #: Bits of the mantissa behind the point, and what is added to an exponent.
    mantissa: int
    excess: int

    @classmethod
    def of(cls, dtype: OperandRow) -> Self:
        """Of its unit roundoff and of its smallest step."""
        mantissa = -round(log2(dtype.roundoff)) - 1
        return cls(mantissa=mantissa, excess=1 - mantissa - round(log2(dtype.smallest_step)))

    @property
    def counting(self) -> int:
        """The bits of the number whose lowest bits count in ones."""
        return self.power(self.mantissa)

    def power(self, exponent: int) -> int:
        """The bits of a power of two."""
        return self.excess + exponent << self.mantissa


def twice(bits: int) -> str:
    """16 bits in both halves of a word, in C."""
    return f"{bits << 16 | bits:#010x}u"


@dataclass(frozen=True, kw_only=True)
class WeightRow:
    """One format. Weights are one tensor of bytes: codes [rows, k], then of each group a factor of each row in the
    workload's element type, and with zero points what is taken from a raised code [k / group, 1 or 2, rows]."""

    #: As JSON has it.
    name: str
    #: Bits of a code.
    bits: int
    #: Elements of k that share a factor; 0 for none.
    group: int = 0
    #: Whether each group of a row has a zero point, an integer that is taken from its codes.
    has_zeros: bool = False
    #: By name, how codes and factors lie: as said above. Who lays them out otherwise names it otherwise.
    layout: str = "lanes"
    #: The element type that codes are; None where they are none.
    element: Dtype | None = None
    #: Of the array module and codes, unsigned integers of 8 bits: their values, without factors.
    values: Callable[[ArrayModule, Array], Array]
    #: Of the array module and normal numbers of deviation 1, float32: codes of about these, times `spread`.
    codes: Callable[[ArrayModule, Array], Array]
    spread: float = 1.0
    #: Its device code: a member of `struct Weights`, `convert`. Names with a $ are of `figures`.
    device: Path
    #: Of the element type that it is converted to, what stands in the device code.
    figures: Callable[[Sixteen], dict[str, str]]

    def row_bytes(self, k: int) -> int:
        """Of a row of so many weights, its factors among them."""
        behind = k // self.group * (1 + self.has_zeros) if self.group else 0
        return k * self.bits // 8 + behind * _ELEMENT_BITS // 8

    def about(self, k: int, dtype: str) -> dict[str, str | int | bool]:
        """What a tensor of codes is, for who lays weights out for a kernel of elements of type `dtype`."""
        factors = dtype if self.group else ""
        codes: dict[str, str | int | bool] = {"format": self.name, "layout": self.layout, "bits": self.bits, "k": k}
        return codes | {"group": self.group, "factors": factors, "has_zeros": self.has_zeros}

    @cached_property
    def chunk(self) -> int:
        """Elements of k that 16 bytes hold: a row has whole ones."""
        return _CHUNK_BITS // self.bits

    @cached_property
    def order(self) -> tuple[int, ...]:
        """[chunk] of each code of 16 bytes, lowest bits first, its column."""
        return tuple(self._column(*divmod(number, _WORD_BITS // self.bits)) for number in range(self.chunk))

    def _column(self, lane: int, place: int) -> int:
        half, pair = divmod(place, _ELEMENT_BITS // self.bits)
        return 16 * (pair // 2) + 2 * lane + 8 * (pair % 2) + half

    def packed(self, xp: ArrayModule, codes: Array, factors: Array | None = None, zeros: Array | None = None) -> Array:
        """[rows, row_bytes] uint8 of codes [rows, k] uint8, and of [rows, k / group] 16 bits each: those of factors,
        and of zero points as `raised` has them."""
        rows, k = codes.shape
        laid = codes.reshape(rows, k // self.chunk, self.chunk)[:, :, xp.asarray(self.order)].reshape(rows, k)
        if self.bits == 4:
            laid = laid[:, 0::2] | laid[:, 1::2] << 4
        if factors is None:
            return xp.ascontiguousarray(laid)
        both = [factors] if zeros is None else [factors, zeros]
        behind = xp.ascontiguousarray(xp.stack([one.T for one in both], axis=1)).view(xp.uint8)
        return xp.concatenate([laid.reshape(-1), behind.reshape(-1)]).reshape(rows, -1)

    def unpacked(self, xp: ArrayModule, weights: Array, k: int) -> tuple[Array, Array | None, Array | None]:
        """Inverse of `packed`, of any array of so many bytes."""
        held, num_bytes = weights.reshape(-1).view(xp.uint8), k * self.bits // 8
        rows = held.size // self.row_bytes(k)
        laid = held[: rows * num_bytes].reshape(rows, num_bytes)
        if self.bits == 4:
            laid = xp.stack([laid & 15, laid >> 4], axis=2).reshape(rows, k)
        codes = xp.empty((rows, k // self.chunk, self.chunk), dtype=xp.uint8)
        codes[:, :, xp.asarray(self.order)] = laid.reshape(rows, k // self.chunk, self.chunk)
        if not self.group:
            return codes.reshape(rows, k), None, None
        behind = held[rows * num_bytes :].view(xp.uint16).reshape(k // self.group, 1 + self.has_zeros, rows)
        both = [xp.ascontiguousarray(behind[:, i].T) for i in range(1 + self.has_zeros)]
        return codes.reshape(rows, k), both[0], both[1] if self.has_zeros else None

    def raised(self, xp: ArrayModule, zeros: Array, dtype: OperandRow) -> Array:
        """Zero points as kernels take them from a code: both are above a number whose lowest bits count in ones."""
        return zeros.astype(xp.uint16) + Sixteen.of(dtype).counting

    def known(self, xp: ArrayModule, weights: Array, k: int, dtype: OperandRow) -> Array:
        """What they stand for, [rows, k] float64."""
        codes, factors, zeros = self.unpacked(xp, weights, k)
        values = self.values(xp, codes).astype(xp.float64)
        if factors is None:
            return values
        if zeros is not None:
            points = zeros.astype(xp.float64) - Sixteen.of(dtype).counting
            values = values - xp.repeat(points, self.group, axis=1)
        return values * xp.repeat(dtype.from_bits(xp, factors).astype(xp.float64), self.group, axis=1)

    def drawn(self, xp: ArrayModule, normal: Array, factors: Array | None, dtype: OperandRow) -> Array:
        """Weights of a trial, of normal numbers [rows, k] and, with groups, of factors [rows, k / group], float32: they
        leave sums about as large as what is multiplied."""
        rows_k = self.codes(xp, normal)
        if factors is None:
            return self.packed(xp, rows_k)
        size = xp.float32(1 / (self.spread * normal.shape[1] ** 0.5))
        # Zero points lie between 4 and 11, by the numbers that are there.
        points = 4 + rows_k[:, :: self.group] % 8
        zeros = self.raised(xp, points, dtype) if self.has_zeros else None
        return self.packed(xp, rows_k, dtype.to_bits(xp, (factors * size).astype(xp.float32)), zeros)

    def text(self, dtype: OperandRow) -> str:
        """`struct Weights` of kernels whose elements are of that type."""
        assert dtype.tensor_kind is not None, dtype.name
        figures = {"kind": dtype.tensor_kind, **self.figures(Sixteen.of(dtype))}
        zeros = f"kHasZeros = {int(self.has_zeros)}"
        member = Template(self.device.read_text(encoding="utf-8")).substitute(figures)
        return (
            f"struct Weights {{\n  enum : int {{ kBits = {self.bits}, kGroup = {self.group}, {zeros} }};\n{member}}};\n"
        )
