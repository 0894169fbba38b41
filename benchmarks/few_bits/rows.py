"""The measured pairs with weights of few bits, their numbers of rows, and their schemes."""

from __future__ import annotations

from dataclasses import dataclass

#: Maximum rates of an H200: bytes/s, and operations/s by the bits of the tensor-core operands. Source:
#: benchmarks.common.rates, and benchmarks.few_bits.peers's first ceilings.
BYTES_PER_S = 4.4e12
OPERATIONS_PER_S = {8: 1580e12, 16: 790e12}
#: Numbers of rows in serving: first one sequence and a few, then medium sizes.
DECODE, MIDDLE = (1, 16, 64), (128, 512)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """H = silu(X G^T) * (X U^T), Y = H D^T: G, U [hidden, d], D [d, hidden]."""

    d: int
    hidden: int

    @property
    def name(self) -> str:
        """The name in results."""
        return f"{self.d}-{self.hidden}"

    @property
    def num_weights(self) -> int:
        """Elements of G, U and D."""
        return 3 * self.d * self.hidden


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How weights and activations are stored."""

    name: str
    #: Bits per weight, and per operand of the tensor cores.
    weight_bits: int
    operand_bits: int
    #: Bits per weight, including scales.
    scale_bits: float = 0.0
    #: The scheme of the peers that multiply the same checkpoint, if it differs.
    peers: str = ""

    def num_bytes(self, pair: Pair) -> float:
        """Bytes of the weights and their scales."""
        return pair.num_weights * (self.weight_bits + self.scale_bits) / 8

    def floor_us(self, pair: Pair, m: int) -> float:
        """The time of reading the weights, or of multiplying them, whichever is longer."""
        read = self.num_bytes(pair) / BYTES_PER_S
        return 1e6 * max(read, 2 * m * pair.num_weights / OPERATIONS_PER_S[self.operand_bits])


PAIRS = (Pair(d=4096, hidden=14336), Pair(d=8192, hidden=3584), Pair(d=3584, hidden=18944))
SCHEMES = {
    one.name: one
    for one in (
        Scheme(name="tensor", weight_bits=8, operand_bits=8),
        Scheme(name="token", weight_bits=8, operand_bits=8),
        Scheme(name="token_groups", weight_bits=8, operand_bits=8, peers="token"),
        Scheme(name="block", weight_bits=8, operand_bits=8, scale_bits=32 / 128**2),
        Scheme(name="w8a16", weight_bits=8, operand_bits=16),
        Scheme(name="w8a16_block", weight_bits=8, operand_bits=16, scale_bits=32 / 128**2, peers="block"),
        Scheme(name="int4", weight_bits=4, operand_bits=16, scale_bits=16 / 128),
        Scheme(name="w4a8", weight_bits=4, operand_bits=8, scale_bits=32 / 128),
        Scheme(name="mxfp4", weight_bits=4, operand_bits=16, scale_bits=8 / 32),
    )
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Peers that are measured together: all peers of a scheme, in the same rounds."""

    scheme: Scheme
    pair: Pair
    m: int

    @property
    def name(self) -> str:
        """The name on the command line."""
        return f"{self.scheme.name}/{self.pair.name}/m{self.m}"

    @property
    def of_peers(self) -> str:
        """The name of the row with its peers."""
        return f"{self.scheme.peers or self.scheme.name}/{self.pair.name}/m{self.m}"

    @property
    def floor_us(self) -> float:
        """The floor of the row's scheme."""
        return self.scheme.floor_us(self.pair, self.m)


def rows() -> list[Row]:
    """The most informative rows first: few rows of two pairs, then the third pair, then medium numbers of rows."""
    parts = ((PAIRS[:2], DECODE), (PAIRS[2:], DECODE), (PAIRS, MIDDLE))
    return [
        Row(scheme=scheme, pair=pair, m=m)
        for pairs, numbers in parts
        for scheme in SCHEMES.values()
        for pair in pairs
        for m in numbers
    ]
