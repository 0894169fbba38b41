"""The op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tuner.extend import Dtype, InvalidInput, LaunchOp, Op, OpKind, Read, Tensor, cache, given, output


@dataclass(frozen=True, kw_only=True)
class TallyOp(LaunchOp):
    """state[i, :] += x[i, :] for i < count, and out = state. The state is fp32 and kept. It has a size `k` like a
    product, but is not one."""

    KIND: ClassVar[str] = "tally"

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows.
    m: int
    k: int = field(metadata={"doc": "columns", "ge": 8, "le": 2**15})
    least: int = field(default=1, metadata={"doc": "the smallest count"})
    most: int | None = field(default=None, metadata={"doc": "the largest count; null for all rows"})
    source: str = field(default="x", metadata={"doc": "what is added: an earlier op, or a name for an input"})

    @property
    def counts(self) -> tuple[int, int]:
        """The smallest and the largest count."""
        return self.least, self.m if self.most is None else self.most

    @property
    def n(self) -> int:
        """Columns."""
        return self.k

    @property
    def c_columns(self) -> int:
        """Elements of a row of the output."""
        return self.k

    @property
    def reads(self) -> tuple[Read, ...]:
        """The added tensor."""
        return (Read("source", self.source, (self.m, self.k)),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """X, the state, the number of rows to add, and the output."""
        return (
            given(self.source, (self.m, self.k), dtype),
            cache(f"{self.name}.state", (self.m, self.k), "fp32"),
            given(f"{self.name}.count", (1,), "int32", range=self.counts),
            output(self.name, (self.m, self.k), dtype),
        )

    @property
    def num_flops(self) -> int:
        """One addition per element."""
        return self.m * self.k

    def check_place(self, ops: Sequence[Op], dtype: Dtype) -> None:
        """Checks that the elements have 16 bits."""
        if dtype.row.tensor_kind is None:
            raise InvalidInput("dtype", f"{self.name} takes elements of 16 bits, not {dtype}", "give fp16 or bf16")


KIND = OpKind(op=TallyOp, version=1)
