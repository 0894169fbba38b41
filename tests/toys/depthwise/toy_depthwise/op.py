"""A depthwise convolution as an op."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tuner.extend import Dtype, InvalidInput, OpKind, Read, Tensor, TileOp, given, output, weight


@dataclass(frozen=True, kw_only=True)
class DepthwiseOp(TileOp):
    """Out[b, i, c] = sum over j of W[c, j] * H[b, i + j - taps / 2, c]; elements outside of a sequence are zero."""

    KIND: ClassVar[str] = "depthwise"
    FREE: ClassVar[tuple[str, ...]] = ("m", "n")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows of all sequences.
    m: int
    n: int = field(metadata={"doc": "channels", "ge": 1, "le": 2**15})
    length: int = field(metadata={"doc": "rows of a sequence", "ge": 1, "le": 2**20})
    taps: int = field(default=3, metadata={"doc": "number of input rows per output row, odd", "ge": 1, "le": 15})
    source: str = field(default="x", metadata={"doc": "the input: an earlier op, or a name for an input"})

    def __post_init__(self) -> None:
        if self.taps % 2 == 0:
            raise InvalidInput("taps", f"{self.taps} have no middle", "give an odd number")
        if self.m % self.length:
            problem = f"{self.m} rows are not a multiple of the {self.length} rows per sequence"
            raise InvalidInput("length", problem, "give a divisor of m")

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return self.m // self.length

    @property
    def radius(self) -> int:
        """The number of rows before and after a row that contribute to it."""
        return self.taps // 2

    @property
    def k(self) -> int:
        """Elements per row of W."""
        return self.taps

    @property
    def c_columns(self) -> int:
        """Elements per row of the output."""
        return self.n

    @property
    def reads(self) -> tuple[Read, ...]:
        """The convolved tensor."""
        return (Read("source", self.source, (self.m, self.n)),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """H, W and the output."""
        sequences = (self.sequences, self.length, self.n)
        return (
            given(self.source, sequences, dtype),
            weight(f"{self.name}.weight", (self.n, self.taps), dtype),
            output(self.name, sequences, dtype),
        )

    @property
    def num_flops(self) -> int:
        """Two per tap."""
        return 2 * self.m * self.n * self.taps

    def row_extents(self, tile_m: int) -> list[int]:
        """The rows of one sequence, repeated for each sequence: no tile spans two sequences."""
        return [min(tile_m, self.length - begin) for begin in range(0, self.length, tile_m)] * self.sequences

    def tile_grid(self, tile_m: int, tile_n: int) -> tuple[int, int]:
        """Tiles of each sequence in turn, times tiles of channels."""
        return self.sequences * -(-self.length // tile_m), -(-self.n // tile_n)

    def num_steps(self, tile_k: int) -> int:
        """One, whatever the depth: a task reads its rows at once."""
        return 1

    def describe(self, *, with_rows: bool = True) -> str:
        """A few words, e.g. ``depthwise of 3 taps``."""
        return f"depthwise of {self.taps} taps"


KIND = OpKind(op=DepthwiseOp, version=1)
