"""A split as an op: two outputs from two inputs, with a factor for each column."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tuner.extend import Dtype, OpKind, Read, Tensor, TileOp, given, output, weight


@dataclass(frozen=True, kw_only=True)
class SplitOp(TileOp):
    """Out[i, j] = f[j] * max(X[i, j], 0), and Rest[i, j] = min(X[i, j], 0) * Y[i, j]."""

    KIND: ClassVar[str] = "split"
    FREE: ClassVar[tuple[str, ...]] = ("m", "n")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE

    #: Unique name of the op, and of its first output.
    name: str
    #: Rows of all its tensors.
    m: int
    n: int = field(metadata={"doc": "columns", "ge": 1, "le": 2**15})
    source: str = field(default="x", metadata={"doc": "X: an earlier op, or a name for an input"})
    gate: str = field(default="y", metadata={"doc": "Y: an earlier op, or a name for an input"})

    @property
    def k(self) -> int:
        """0, since there is no matrix of weights."""
        return 0

    @property
    def c_columns(self) -> int:
        """Elements per row of the output."""
        return self.n

    @property
    def reads(self) -> tuple[Read, ...]:
        """X and Y."""
        return (Read("source", self.source, (self.m, self.n)), Read("gate", self.gate, (self.m, self.n)))

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """X, Y, the factors, and both outputs."""
        return (
            given(self.source, (self.m, self.n), dtype),
            given(self.gate, (self.m, self.n), dtype),
            weight(f"{self.name}.factors", (self.n,), "fp32"),
            output(f"{self.name}.rest", (self.m, self.n), dtype),
            output(self.name, (self.m, self.n), dtype),
        )

    @property
    def num_flops(self) -> int:
        """Four per element."""
        return 4 * self.m * self.n

    def num_steps(self, tile_k: int) -> int:
        """One, whatever the depth."""
        return 1


KIND = OpKind(op=SplitOp, version=1)
