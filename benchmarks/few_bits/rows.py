"""Which pairs are measured with weights of few bits, at how many rows, by which schemes."""

from __future__ import annotations

from dataclasses import dataclass

#: What an H200 reads at best, bytes/s, and multiplies at best, operations/s by the bits of what its tensor cores take.
#: Source: benchmarks.common.rates, and benchmarks.few_bits.peers's first ceilings.
BYTES_PER_S = 4.4e12
OPERATIONS_PER_S = {8: 1580e12, 16: 790e12}
#: Rows that are served: one sequence and more, then the middle.
DECODE, MIDDLE = (1, 16, 64), (128, 512)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """H = silu(X G^T) * (X U^T), Y = H D^T: G, U [hidden, d], D [d, hidden]."""

    d: int
    hidden: int

    @property
    def name(self) -> str:
        """As results have it."""
        return f"{self.d}-{self.hidden}"

    @property
    def num_weights(self) -> int:
        """Elements of G, U and D."""
        return 3 * self.d * self.hidden


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How weights and activations are stored."""

    name: str
    #: Bits of a weight, and those of the operands that the tensor cores take.
    weight_bits: int
    operand_bits: int
    #: Bits of scales, by weight.
    scale_bits: float = 0.0

    def num_bytes(self, pair: Pair) -> float:
        """Of weights and their scales."""
        return pair.num_weights * (self.weight_bits + self.scale_bits) / 8

    def floor_us(self, pair: Pair, m: int) -> float:
        """What reading the weights takes, or multiplying them: the longer."""
        read = self.num_bytes(pair) / BYTES_PER_S
        return 1e6 * max(read, 2 * m * pair.num_weights / OPERATIONS_PER_S[self.operand_bits])


PAIRS = (Pair(d=4096, hidden=14336), Pair(d=8192, hidden=3584), Pair(d=3584, hidden=18944))
SCHEMES = {
    one.name: one
    for one in (
        Scheme(name="tensor", weight_bits=8, operand_bits=8),
        Scheme(name="token", weight_bits=8, operand_bits=8),
        Scheme(name="block", weight_bits=8, operand_bits=8, scale_bits=32 / 128**2),
        Scheme(name="w8a16", weight_bits=8, operand_bits=16),
        Scheme(name="int4", weight_bits=4, operand_bits=16, scale_bits=16 / 128),
        Scheme(name="mxfp4", weight_bits=4, operand_bits=16, scale_bits=8 / 32),
    )
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is measured together: all peers of a scheme, in the same rounds."""

    scheme: Scheme
    pair: Pair
    m: int

    @property
    def name(self) -> str:
        """As the command line has it."""
        return f"{self.scheme.name}/{self.pair.name}/m{self.m}"

    @property
    def floor_us(self) -> float:
        """Of its scheme."""
        return self.scheme.floor_us(self.pair, self.m)


def rows() -> list[Row]:
    """What decides first: few rows of two pairs, then the third pair, then the middle."""
    parts = ((PAIRS[:2], DECODE), (PAIRS[2:], DECODE), (PAIRS, MIDDLE))
    return [
        Row(scheme=scheme, pair=pair, m=m)
        for pairs, numbers in parts
        for scheme in SCHEMES.values()
        for pair in pairs
        for m in numbers
    ]
