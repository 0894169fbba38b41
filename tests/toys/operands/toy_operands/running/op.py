"""A running mean, kept between launches, as an op."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tuner.extend import Dtype, OpKind, Read, Tensor, TileOp, cache, given, output


@dataclass(frozen=True, kw_only=True)
class RunningOp(TileOp):
    """State[i, j] = keep * State[i, j] + X[i, j], in place and in fp32; out is the new state, rounded."""

    KIND: ClassVar[str] = "running"
    FREE: ClassVar[tuple[str, ...]] = ("m", "n")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows of X, of the state and of the output.
    m: int
    n: int = field(metadata={"doc": "columns", "ge": 1, "le": 2**15})
    keep: float = field(default=0.5, metadata={"doc": "the factor of the previous state", "ge": 0, "le": 1})
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
        return (Read("source", self.source, (self.m, self.n)),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """X, the state and the output."""
        return (
            given(self.source, (self.m, self.n), dtype),
            cache(f"{self.name}.state", (self.m, self.n), "fp32"),
            output(self.name, (self.m, self.n), dtype),
        )

    @property
    def num_flops(self) -> int:
        """Two per element."""
        return 2 * self.m * self.n

    def num_steps(self, tile_k: int) -> int:
        """One, whatever the depth."""
        return 1


KIND = OpKind(op=RunningOp, version=1)
