"""A max pooling as an op."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tuner.extend import Dtype, InvalidInput, OpKind, Read, Tensor, TileOp, given, output


@dataclass(frozen=True, kw_only=True)
class PoolOp(TileOp):
    """Out[b, i, j, c] = the maximum of X[b, s i .. s i + s - 1, s j .. s j + s - 1, c] with stride s."""

    KIND: ClassVar[str] = "pool"
    FREE: ClassVar[tuple[str, ...]] = ("m", "n")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Pixels of all images of the output.
    m: int
    n: int = field(metadata={"doc": "channels", "ge": 1, "le": 2**15})
    height: int = field(metadata={"doc": "rows of an input picture", "ge": 1, "le": 2**12})
    width: int = field(metadata={"doc": "pixels of such a row", "ge": 1, "le": 2**12})
    stride: int = field(default=2, metadata={"doc": "stride and size of a window, in pixels", "ge": 1, "le": 8})
    source: str = field(default="x", metadata={"doc": "X: an earlier op, or a name for an input"})

    def __post_init__(self) -> None:
        if self.height % self.stride or self.width % self.stride:
            problem = f"{self.stride} does not divide {self.height} x {self.width}"
            raise InvalidInput("stride", problem, "give a divisor of both")
        if self.m % (self.out_height * self.out_width):
            problem = f"{self.m} rows are not a multiple of the {self.out_height * self.out_width} pixels of a picture"
            raise InvalidInput("height", problem, "give sizes whose product divides m")

    @property
    def out_height(self) -> int:
        """The height of an output picture."""
        return self.height // self.stride

    @property
    def out_width(self) -> int:
        """The width of an output picture."""
        return self.width // self.stride

    @property
    def pictures(self) -> int:
        """The number of pictures."""
        return self.m // (self.out_height * self.out_width)

    @property
    def k(self) -> int:
        """0, since there are no weights."""
        return 0

    @property
    def c_columns(self) -> int:
        """Elements per pixel."""
        return self.n

    @property
    def reads(self) -> tuple[Read, ...]:
        """X, with a row for each of its pixels."""
        return (Read("source", self.source, (self.m * self.stride**2, self.n)),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """X and the output, both four-dimensional."""
        return (
            given(self.source, (self.pictures, self.height, self.width, self.n), dtype),
            output(self.name, (self.pictures, self.out_height, self.out_width, self.n), dtype),
        )

    @property
    def num_flops(self) -> int:
        """One comparison for each element read."""
        return self.m * self.n * self.stride**2

    def num_steps(self, tile_k: int) -> int:
        """One, whatever the depth."""
        return 1


KIND = OpKind(op=PoolOp, version=1)
