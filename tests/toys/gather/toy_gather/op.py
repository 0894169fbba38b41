"""A gather as an op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tuner.extend import Dtype, InvalidInput, LaunchOp, Op, OpKind, Read, Tensor, given, output, weight


@dataclass(frozen=True, kw_only=True)
class GatherOp(LaunchOp):
    """Out[i, :] = X[i, :] + T[rows[i], :] for i < count; later rows are zero. The count is given at launch."""

    KIND: ClassVar[str] = "gather"
    FREE: ClassVar[tuple[str, ...]] = ("m", "table_rows")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows of X and of the output.
    m: int
    n: int = field(metadata={"doc": "columns of X, of the table and of the output", "ge": 1, "le": 2**15})
    table_rows: int = field(metadata={"doc": "rows of the table", "ge": 1, "le": 2**20})
    source: str = field(default="x", metadata={"doc": "what is added to: an earlier op, or a name for an input"})

    def __post_init__(self) -> None:
        if self.n % 8:
            raise InvalidInput("n", f"{self.n} columns are not a multiple of 8", "use a multiple of 8")

    @property
    def c_columns(self) -> int:
        """Elements per row of the output."""
        return self.n

    @property
    def reads(self) -> tuple[Read, ...]:
        """The tensor to which rows are added."""
        return (Read("source", self.source, (self.m, self.n)),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """X, the table, the indices of its rows, their number, and the output."""
        return (
            given(self.source, (self.m, self.n), dtype),
            weight(f"{self.name}.table", (self.table_rows, self.n), dtype),
            given(f"{self.name}.rows", (self.m,), "int32", range=(0, self.table_rows - 1)),
            given(f"{self.name}.count", (1,), "int32", range=(0, self.m)),
            output(self.name, (self.m, self.n), dtype),
        )

    def check_place(self, ops: Sequence[Op], dtype: Dtype) -> None:
        """Checks that the elements are of a type that an SM adds two at a time."""
        if dtype.row.tensor_kind is None:
            raise InvalidInput("dtype", f"{self.name} gathers elements of 16 bits, not {dtype}", "give fp16 or bf16")

    @property
    def num_flops(self) -> int:
        """One addition per element."""
        return self.m * self.n

    def weight_bytes(self, dtype: Dtype) -> int:
        """The bytes of the table's rows that a timed launch reads."""
        return self.m * self.n * dtype.size_bytes

    def describe(self, *, with_rows: bool = True) -> str:
        """A few words, e.g. ``gather of 16 from 4096 x 512``."""
        rows = f"of {self.m} " if with_rows else ""
        return f"gather {rows}from {self.table_rows} x {self.n}"


KIND = OpKind(op=GatherOp, version=1)
