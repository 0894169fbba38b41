"""The maximum of pairs as an op."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tuner.extend import Dtype, OpKind, Read, Tensor, TileOp, given, output


@dataclass(frozen=True, kw_only=True)
class PairsOp(TileOp):
    """Out[i, j] = max(X[i, 2j], X[i, 2j + 1])."""

    KIND: ClassVar[str] = "pairs"
    FREE: ClassVar[tuple[str, ...]] = ("m", "n")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows of X and of the output.
    m: int
    n: int = field(metadata={"doc": "columns of the output, half of those of X", "ge": 1, "le": 2**15})
    source: str = field(default="x", metadata={"doc": "X: an earlier op, or a name for an input"})

    @property
    def k(self) -> int:
        """0, since there are no weights."""
        return 0

    @property
    def c_columns(self) -> int:
        """Elements per row of the output."""
        return self.n

    @property
    def reads(self) -> tuple[Read, ...]:
        """X."""
        return (Read("source", self.source, (self.m, 2 * self.n)),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """X and the output."""
        return (given(self.source, (self.m, 2 * self.n), dtype), output(self.name, (self.m, self.n), dtype))

    @property
    def num_flops(self) -> int:
        """One comparison per element."""
        return self.m * self.n

    def num_steps(self, tile_k: int) -> int:
        """One, whatever the depth."""
        return 1


KIND = OpKind(op=PairsOp, version=1)
