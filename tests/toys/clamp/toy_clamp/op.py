"""A clamp as an op."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tuner.extend import Dtype, OpKind, Read, Tensor, TileOp, given, output


@dataclass(frozen=True, kw_only=True)
class ClampOp(TileOp):
    """Out[i, j] = min(max(X[i, j], -limit), limit)."""

    KIND: ClassVar[str] = "clamp"
    FREE: ClassVar[tuple[str, ...]] = ("m", "n")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows of X and of the output.
    m: int
    n: int = field(metadata={"doc": "columns", "ge": 1, "le": 2**15})
    limit: float = field(default=1.0, metadata={"doc": "the largest size of an element", "gt": 0})
    source: str = field(default="x", metadata={"doc": "X: an earlier op, or a name for an input"})

    @property
    def k(self) -> int:
        """It has no weights."""
        return 0

    @property
    def c_columns(self) -> int:
        """Elements of a row of the output."""
        return self.n

    @property
    def reads(self) -> tuple[Read, ...]:
        """X."""
        return (Read("source", self.source, (self.m, self.n)),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """X and the output."""
        return (given(self.source, (self.m, self.n), dtype), output(self.name, (self.m, self.n), dtype))

    @property
    def num_flops(self) -> int:
        """Two comparisons per element."""
        return 2 * self.m * self.n

    def num_steps(self, tile_k: int) -> int:
        """One, whatever the depth: a task reads its tile at once."""
        return 1


KIND = OpKind(op=ClampOp, version=1)
