"""The op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tuner.extend import Dtype, InvalidInput, LaunchOp, Op, OpKind, Read, Tensor, given, output


@dataclass(frozen=True, kw_only=True)
class AbsmaxOp(LaunchOp):
    """scale[i] = max |x[i, :]|, and out[i, :] = x[i, :] / scale[i]: zeros where that is 0."""

    KIND: ClassVar[str] = "absmax"

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows.
    m: int
    n: int = field(metadata={"doc": "columns", "ge": 8, "le": 2**15})
    source: str = field(default="x", metadata={"doc": "what is scaled: an earlier op, or a name for an input"})

    @property
    def c_columns(self) -> int:
        """Elements per row of the output."""
        return self.n

    @property
    def reads(self) -> tuple[Read, ...]:
        """The scaled tensor."""
        return (Read("source", self.source, (self.m, self.n)),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """X, the scales of its rows in fp32, the negated quotients, and the output."""
        sizes = (self.m, self.n)
        others = output(f"{self.name}.scale", (self.m,), "fp32"), output(f"{self.name}.negated", sizes, dtype)
        return given(self.source, sizes, dtype), *others, output(self.name, sizes, dtype)

    @property
    def num_flops(self) -> int:
        """A comparison and a division per element."""
        return 2 * self.m * self.n

    def check_place(self, ops: Sequence[Op], dtype: Dtype) -> None:
        """Checks that the elements have 16 bits."""
        if dtype.row.tensor_kind is None:
            raise InvalidInput("dtype", f"{self.name} takes elements of 16 bits, not {dtype}", "give fp16 or bf16")


KIND = OpKind(op=AbsmaxOp, version=1)
