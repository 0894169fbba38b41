"""The properties of a weight format, and how a kernel reads it.

A weight is a code with few bits; in formats with groups, several codes of a row share a factor. A kernel multiplies
elements of 16 or 8 bits, to which it converts codes in registers. Codes have the order in which tensor cores read
elements: a row is a sequence of 16-byte chunks of four words, word c for lane c of four. For 16 bits, each half of a
word has a code of one of two columns, for each pair of columns that the lane needs: 2 c and 2 c + 1, then 8 further,
then 16 further. For 8 bits, a lane needs columns 4 c to 4 c + 3, then 16 further. The format determines the bits of a
code: contiguous in its half, or such that conversion needs fewer shifts.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", fragments of A of wgmma m64k16 and m64k32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import frexp, log2
from pathlib import Path
from string import Template
from typing import Any, Self

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import Array, ArrayModule, OperandRow

#: Bits that one thread loads for each of four lanes, and bits of a multiplied element.
_CHUNK_BITS, _WORD_BITS, _ELEMENT_BITS = 128, 32, 16
#: Maximum columns whose groups' factors are adjacent, equal to the shortest stage of codes in groups; and the bytes of
#: these factors, which a thread reads at once.
_BUNDLE, _BUNDLE_BYTES = 256, 8
#: Codes that are laid out at a time: few enough for a core's cache.
_CODES_AT_ONCE = 1 << 19
#: The bias of an 8-bit power of two. Source: OCP Microscaling Formats 1.0, e8m0.
POWER_EXCESS = 127


@dataclass(frozen=True, kw_only=True)
class Sixteen:
    """The number format of an element of 16 bits, or fewer."""

    #: Mantissa bits, and the exponent bias.
    mantissa: int
    excess: int

    @classmethod
    def of(cls, dtype: OperandRow) -> Self:
        """The number format of an element type, from its unit roundoff and its smallest step."""
        mantissa = -round(log2(dtype.roundoff)) - 1
        return cls(mantissa=mantissa, excess=1 - mantissa - round(log2(dtype.smallest_step)))

    @property
    def counting(self) -> int:
        """The bits of the number whose lowest bits count ones."""
        return self.power(self.mantissa)

    def power(self, exponent: int) -> int:
        """The bits of a power of two."""
        return self.excess + exponent << self.mantissa

    def of_value(self, value: float) -> int:
        """The bits of a normal number."""
        significand, exponent = frexp(abs(value))
        mantissa = (2 * significand - 1) * 2**self.mantissa
        assert value, "0 is not a normal number"
        assert mantissa == int(mantissa), value
        return (value < 0) << 15 | self.power(exponent - 1) | int(mantissa)


def twice(bits: int) -> str:
    """A C literal of a word with the same 16 bits in both halves."""
    return f"{bits << 16 | bits:#010x}u"


@dataclass(frozen=True, kw_only=True)
class WeightRow:
    """One format. Weights are one tensor of bytes: codes [rows, k]; with groups, for each bundle of columns, the
    factors of each row [rows, bundle / group]; and with zero points, likewise the values that are subtracted from
    raised codes."""

    #: Its name in JSON.
    name: str
    #: Bits of a code.
    bits: int
    #: Elements of k that share a factor; 0 if there are no factors.
    group: int = 0
    #: Whether each group of a row has a zero point, an integer that is subtracted from its codes.
    has_zeros: bool = False
    #: Whether factors are powers of two (e8m0), bytes by which the weights are multiplied exactly. Otherwise the sums
    #: of a group are multiplied, by factors that have the workload's element type, or are float32.
    has_powers: bool = False
    has_float_factors: bool = False
    #: Bits of the elements to which kernels convert codes: those of the workload's dtype.
    element_bits: int = 16
    #: [pair of columns][code], the position of a code in the lower half of a word; in the upper half it is 16 bits
    #: further, modulo the word. For elements of 8 bits [first and second of each pair][code], in the whole word. None
    #: if codes are contiguous.
    placed: tuple[tuple[int, ...], ...] | None = None
    #: The name of the layout of codes and factors: as above, with contiguous codes or with `placed`.
    layout: str = "lanes"
    #: The element type whose bits the codes are; None if there is none.
    element: Dtype | None = None
    #: From the array module and codes, unsigned integers of 8 bits, to their values, without factors.
    values: Callable[[ArrayModule, Array], Array]
    #: From the array module and standard normal float32 numbers to codes of about these numbers times `spread`.
    codes: Callable[[ArrayModule, Array], Array]
    spread: float = 1.0
    #: Its device code: a member `convert` of `struct Weights`. Names with a $ are replaced from `figures`.
    device: Path
    #: Constants in the device code, given the element type that it is converted to.
    figures: Callable[[Sixteen], dict[str, str]]

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of `k` weights, factors included."""
        return k * self.bits // 8 + (k // self.group * self.factor_bytes * self.num_lists if self.group else 0)

    @property
    def factor_bytes(self) -> int:
        """Bytes of the factor of a group of a row."""
        if self.has_powers:
            return 1
        return 4 if self.has_float_factors else _ELEMENT_BITS // 8

    def factor_bits(self, xp: ArrayModule) -> Any:
        """The array module's type for the bits of a factor."""
        return {1: xp.uint8, 2: xp.uint16, 4: xp.uint32}[self.factor_bytes]

    @property
    def form(self) -> tuple[int, bool, bool, bool, int]:
        """What formats that differ only in the size of their groups have in common."""
        return self.bits, self.group > 0, self.has_zeros, self.has_powers, self.element_bits

    @property
    def scales_sums(self) -> bool:
        """Whether a group's sums are multiplied by its factor, rather than its weights."""
        return self.group > 0 and not self.has_powers

    @property
    def num_lists(self) -> int:
        """Number of lists besides the codes: factors, and zero points."""
        return 1 + self.has_zeros

    def about(self, k: int, dtype: str) -> dict[str, str | int | bool]:
        """A description of a tensor of codes, for laying out weights for a kernel with elements of type `dtype`."""
        kind = "e8m0" if self.has_powers else "fp32" if self.has_float_factors else dtype
        factors = kind if self.group else ""
        codes: dict[str, str | int | bool] = {"format": self.name, "layout": self.layout, "bits": self.bits, "k": k}
        return codes | {"group": self.group, "factors": factors, "has_zeros": self.has_zeros}

    @cached_property
    def chunk(self) -> int:
        """Elements of k in 16 bytes."""
        return _CHUNK_BITS // self.bits

    @property
    def fragment_registers(self) -> int:
        """Registers of a thread for 64 rows of weights that are loaded and converted at a time, 32 bytes of a row."""
        return 2 * _CHUNK_BITS // self.bits * self.element_bits // 64

    @property
    def bundle(self) -> int:
        """Columns whose groups' factors of a row are adjacent; 0 without groups."""
        return min(_BUNDLE, _BUNDLE_BYTES // self.factor_bytes * self.group)

    @property
    def unit(self) -> int:
        """The number of which a row's length must be a multiple, elements of k."""
        return self.bundle or self.chunk

    @cached_property
    def order(self) -> tuple[int, ...]:
        """[chunk] the column of each code in 16 bytes: word by word, its lower half first."""
        return tuple(self._column(*divmod(number, _WORD_BITS // self.bits)) for number in range(self.chunk))

    def _column(self, lane: int, place: int) -> int:
        half, pair = divmod(place, _ELEMENT_BITS // self.bits)
        if self.element_bits == 8:
            return 16 * (pair // 2) + 4 * lane + 2 * (pair % 2) + half
        return 16 * (pair // 2) + 2 * lane + 8 * (pair % 2) + half

    @cached_property
    def _places(self) -> tuple[tuple[int, ...], ...]:
        """[code of a word][bit of the code] the bit's position in the word."""
        if self.placed and self.element_bits == 8:
            return self.placed
        pairs = self.placed or tuple(
            tuple(code << place for code in range(1 << self.bits)) for place in range(0, _ELEMENT_BITS, self.bits)
        )
        return (*pairs, *(tuple((bits << 16 | bits >> 16) & 0xFFFFFFFF for bits in codes) for codes in pairs))

    @cached_property
    def pair_places(self) -> tuple[tuple[int, ...], ...]:
        """[pair of columns of a word][code of the second, then of the first column] their bits there."""
        num_pairs = len(self._places) // 2
        halves = zip(self._places[:num_pairs], self._places[num_pairs:], strict=True)
        return tuple(tuple(low | high for high in second for low in first) for first, second in halves)

    def packed(self, xp: ArrayModule, codes: Array, factors: Array | None = None, zeros: Array | None = None) -> Array:
        """[rows, row_bytes] uint8 from codes [rows, k] uint8, and [rows, k / group] each: the bits of factors, and zero
        points as returned by `raised`."""
        rows, k = codes.shape
        words = xp.empty((rows, k * self.bits // _WORD_BITS), dtype=xp.uint32)
        step = max(1, _CODES_AT_ONCE // k)
        for first in range(0, rows, step):
            words[first : first + step] = self._words(xp, codes[first : first + step])
        if factors is None:
            return xp.ascontiguousarray(words).view(xp.uint8)
        lists = [factors] if zeros is None else [factors, zeros]
        bundles = [one.reshape(rows, k // self.bundle, -1).transpose(1, 0, 2) for one in lists]
        behind = xp.ascontiguousarray(xp.stack(bundles, axis=1)).view(xp.uint8)
        return xp.concatenate([words.view(xp.uint8).reshape(-1), behind.reshape(-1)]).reshape(rows, -1)

    def _words(self, xp: ArrayModule, codes: Array) -> Array:
        """The codes of some rows, as words."""
        rows, k = codes.shape
        # The two codes of a pair are looked up together as one number, which halves the number of look-ups.
        wide = xp.uint8 if 2 * self.bits <= 8 else xp.uint16
        pairs = codes[:, 0::2].astype(wide, copy=False) | codes[:, 1::2].astype(wide, copy=False) << wide(self.bits)
        if self.element_bits == 8:
            pairs = pairs.reshape(-1, 2, 4, 2).transpose(0, 1, 3, 2)
        pairs = pairs.reshape(rows, k // self.chunk, len(self.pair_places), -1)
        words = xp.zeros((rows, k // self.chunk, pairs.shape[-1]), dtype=xp.uint32)
        for number, places in enumerate(self.pair_places):
            words |= xp.take(xp.asarray(places, dtype=xp.uint32), pairs[:, :, number])
        return words.reshape(rows, -1)

    def unpacked(self, xp: ArrayModule, weights: Array, k: int) -> tuple[Array, Array | None, Array | None]:
        """Inverse of `packed`, for any array with as many bytes."""
        held, num_bytes = weights.reshape(-1).view(xp.uint8), k * self.bits // 8
        rows = held.size // self.row_bytes(k)
        words = xp.ascontiguousarray(held[: rows * num_bytes]).view(xp.uint32).reshape(rows, -1)
        laid = xp.stack([_code_of(xp, words, places) for places in self._places], axis=2)
        codes = xp.empty((rows, k // self.chunk, self.chunk), dtype=xp.uint8)
        codes[:, :, xp.asarray(self.order)] = laid.reshape(rows, k // self.chunk, self.chunk)
        if not self.group:
            return codes.reshape(rows, k), None, None
        behind = xp.ascontiguousarray(held[rows * num_bytes :]).view(self.factor_bits(xp))
        behind = behind.reshape(k // self.bundle, self.num_lists, rows, self.bundle // self.group)
        lists = [xp.ascontiguousarray(behind[:, i].transpose(1, 0, 2)).reshape(rows, -1) for i in range(self.num_lists)]
        return codes.reshape(rows, k), lists[0], lists[1] if self.has_zeros else None

    def raised(self, xp: ArrayModule, zeros: Array, dtype: OperandRow) -> Array:
        """Zero points in the form in which kernels subtract them from codes: both are added to a number whose lowest
        bits count ones."""
        return zeros.astype(xp.uint16) + Sixteen.of(dtype).counting

    def known(self, xp: ArrayModule, weights: Array, k: int, dtype: OperandRow) -> Array:
        """The values of the weights, [rows, k] float64."""
        codes, factors, zeros = self.unpacked(xp, weights, k)
        values = self.values(xp, codes).astype(xp.float64)
        if factors is None:
            return values
        if zeros is not None:
            points = zeros.astype(xp.float64) - Sixteen.of(dtype).counting
            values = values - xp.repeat(points, self.group, axis=1)
        if self.has_powers:
            sizes = xp.exp2(factors.astype(xp.float64) - POWER_EXCESS)
        elif self.has_float_factors:
            sizes = factors.view(xp.float32).astype(xp.float64)
        else:
            sizes = dtype.from_bits(xp, factors).astype(xp.float64)
        return values * xp.repeat(sizes, self.group, axis=1)

    def drawn(self, xp: ArrayModule, normal: Array, factors: Array | None, dtype: OperandRow) -> Array:
        """Weights of a trial, from normal numbers [rows, k] and, with groups, factors [rows, k / group], float32, such
        that sums are about as large as the inputs."""
        rows_k = self.codes(xp, normal)
        if factors is None:
            return self.packed(xp, rows_k)
        sizes = (factors * xp.float32(1 / (self.spread * normal.shape[1] ** 0.5))).astype(xp.float32)
        if self.has_powers:
            return self.packed(xp, rows_k, (xp.rint(xp.log2(sizes)) + POWER_EXCESS).astype(xp.uint8))
        if self.has_float_factors:
            return self.packed(xp, rows_k, sizes.view(xp.uint32))
        # Zero points between 4 and 11, derived from the given numbers.
        points = 4 + rows_k[:, :: self.group] % 8
        zeros = self.raised(xp, points, dtype) if self.has_zeros else None
        return self.packed(xp, rows_k, dtype.to_bits(xp, sizes), zeros)

    def text(self, dtype: OperandRow) -> str:
        """`struct Weights` for kernels with elements of type `dtype`."""
        assert dtype.tensor_product is not None, dtype.name
        figures = {"kind": dtype.tensor_product.kind, **self.figures(Sixteen.of(dtype))}
        size = self.factor_bytes if self.group else 0
        enumerators = f"kBits = {self.bits}, kGroup = {self.group}, kBundle = {self.bundle}, kFactorBytes = {size}"
        enumerators += f", kHasZeros = {int(self.has_zeros)}, kHasPowers = {int(self.has_powers)}"
        member = Template(self.device.read_text(encoding="utf-8")).substitute(figures)
        return f"struct Weights {{\n  enum : int {{ {enumerators} }};\n{member}}};\n"


def _code_of(xp: ArrayModule, words: Array, places: tuple[int, ...]) -> Array:
    """The code in each word of an array, as uint8 of the same shape; `places` are the positions of its bits in the
    word.
    """
    mask = 0
    for bits in places:
        mask |= bits
    bits_of_mask = [bit for bit in range(_WORD_BITS) if mask >> bit & 1]
    number = xp.zeros(words.shape, dtype=xp.uint32)
    for i, bit in enumerate(bits_of_mask):
        number |= (words >> xp.uint32(bit) & xp.uint32(1)) << xp.uint32(i)
    codes = [0] * len(places)
    for code, bits in enumerate(places):
        codes[sum((bits >> bit & 1) << i for i, bit in enumerate(bits_of_mask))] = code
    return xp.asarray(codes, dtype=xp.uint8)[number]
