"""The properties of a weight format, and how a kernel reads it.

A weight is a code of few bits; with groups, this many codes of a row share a factor. A kernel multiplies elements of 16
bits, to which it converts codes in registers. So codes are stored in the order in which tensor cores need the elements:
a row in blocks of 16 bytes, each with four words, word c for lane c of four. Each half of a word has a code for each of
two columns, side by side for each pair of columns that the lane needs: 2 c and 2 c + 1, then 8 further, then 16
further.

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

#: Bits that one thread loads for each of four lanes, and bits of a multiplied element.
_CHUNK_BITS, _WORD_BITS, _ELEMENT_BITS = 128, 32, 16


@dataclass(frozen=True, kw_only=True)
class Sixteen:
    """The number format of a 16-bit element."""

    #: Bits of the mantissa after the point, and the exponent bias.
    mantissa: int
    excess: int

    @classmethod
    def of(cls, dtype: OperandRow) -> Self:
        """From its unit roundoff and its smallest step."""
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
    """One format. Weights are one tensor of bytes: codes [rows, k], then for each group one factor per row in the
    workload's element type, and with zero points the values to subtract from a raised code [k / group, 1 or 2,
    rows]."""

    #: Its name in JSON.
    name: str
    #: Bits of a code.
    bits: int
    #: Elements of k that share a factor; 0 for none.
    group: int = 0
    #: Whether each group of a row has a zero point, an integer that is subtracted from its codes.
    has_zeros: bool = False
    #: By name, how codes and factors lie: as said above. Who lays them out otherwise names it otherwise.
    layout: str = "lanes"
    #: The element type of the codes; None if they have none.
    element: Dtype | None = None
    #: From the array module and codes, unsigned integers of 8 bits, to their values, without factors.
    values: Callable[[ArrayModule, Array], Array]
    #: From the array module and normal numbers of deviation 1, float32, to codes of about these numbers times `spread`.
    codes: Callable[[ArrayModule, Array], Array]
    spread: float = 1.0
    #: Its device code: a member `convert` of `struct Weights`. Names with a $ are replaced from `figures`.
    device: Path
    #: Constants in the device code, given the element type that it is converted to.
    figures: Callable[[Sixteen], dict[str, str]]

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of this many weights, factors included."""
        behind = k // self.group * (1 + self.has_zeros) if self.group else 0
        return k * self.bits // 8 + behind * _ELEMENT_BITS // 8

    def about(self, k: int, dtype: str) -> dict[str, str | int | bool]:
        """What a tensor of codes is, for who lays weights out for a kernel of elements of type `dtype`."""
        factors = dtype if self.group else ""
        codes: dict[str, str | int | bool] = {"format": self.name, "layout": self.layout, "bits": self.bits, "k": k}
        return codes | {"group": self.group, "factors": factors, "has_zeros": self.has_zeros}

    @cached_property
    def chunk(self) -> int:
        """Elements of k in 16 bytes: a row has a whole number of these."""
        return _CHUNK_BITS // self.bits

    @cached_property
    def order(self) -> tuple[int, ...]:
        """[chunk] the column of each code of 16 bytes, lowest bits first."""
        return tuple(self._column(*divmod(number, _WORD_BITS // self.bits)) for number in range(self.chunk))

    def _column(self, lane: int, place: int) -> int:
        half, pair = divmod(place, _ELEMENT_BITS // self.bits)
        return 16 * (pair // 2) + 2 * lane + 8 * (pair % 2) + half

    def packed(self, xp: ArrayModule, codes: Array, factors: Array | None = None, zeros: Array | None = None) -> Array:
        """[rows, row_bytes] uint8 from codes [rows, k] uint8, and from factors and zero points [rows, k / group]
        with 16 bits each; zero points as `raised` returns them."""
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
        """Inverse of `packed`, for any array of this many bytes."""
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
        """Zero points as kernels subtract them from a code: both are added to a number whose lowest bits count in
        ones."""
        return zeros.astype(xp.uint16) + Sixteen.of(dtype).counting

    def known(self, xp: ArrayModule, weights: Array, k: int, dtype: OperandRow) -> Array:
        """Their values, [rows, k] float64."""
        codes, factors, zeros = self.unpacked(xp, weights, k)
        values = self.values(xp, codes).astype(xp.float64)
        if factors is None:
            return values
        if zeros is not None:
            points = zeros.astype(xp.float64) - Sixteen.of(dtype).counting
            values = values - xp.repeat(points, self.group, axis=1)
        return values * xp.repeat(dtype.from_bits(xp, factors).astype(xp.float64), self.group, axis=1)

    def drawn(self, xp: ArrayModule, normal: Array, factors: Array | None, dtype: OperandRow) -> Array:
        """Weights of a trial, from normal numbers [rows, k] and, with groups, factors [rows, k / group], float32:
        their sums are about as large as the inputs."""
        rows_k = self.codes(xp, normal)
        if factors is None:
            return self.packed(xp, rows_k)
        size = xp.float32(1 / (self.spread * normal.shape[1] ** 0.5))
        # Zero points between 4 and 11, derived from the given numbers.
        points = 4 + rows_k[:, :: self.group] % 8
        zeros = self.raised(xp, points, dtype) if self.has_zeros else None
        return self.packed(xp, rows_k, dtype.to_bits(xp, (factors * size).astype(xp.float32)), zeros)

    def text(self, dtype: OperandRow) -> str:
        """`struct Weights` for kernels with elements of that type."""
        assert dtype.tensor_kind is not None, dtype.name
        figures = {"kind": dtype.tensor_kind, **self.figures(Sixteen.of(dtype))}
        zeros = f"kHasZeros = {int(self.has_zeros)}"
        member = Template(self.device.read_text(encoding="utf-8")).substitute(figures)
        return (
            f"struct Weights {{\n  enum : int {{ kBits = {self.bits}, kGroup = {self.group}, {zeros} }};\n{member}}};\n"
        )
