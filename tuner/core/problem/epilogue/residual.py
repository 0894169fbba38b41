"""A matrix that is added after the activation, before rounding."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import Broken, Part, Product, Stage, Traffic
from tuner.core.problem.epilogue.sums import Sums, Tensors
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import Tensor, given


def residual_of(op: Product) -> str:
    """The added tensor, if there is one."""
    return op.residual_source or f"{op.name}.residual"


def residual_dtype(op: Product, dtype: Dtype) -> Dtype:
    """The element type of the added tensor in a workload of type `dtype`. A residual stream is never stored as elements
    with scales; in such a workload it has the output's type."""
    return op.out_dtype if op.out_dtype and dtype.sums is not dtype else dtype


class Residual(Part):
    """A tensor that the op names, or a separate input."""

    field: ClassVar[str] = "residual"
    is_of_words: ClassVar[bool] = True
    stage: ClassVar[Stage] = Stage.RESULT
    own_names: ClassVar[tuple[str, ...]] = ("residual",)
    slot: ClassVar[str] = "residual"
    is_read_first: ClassVar[bool] = True
    planted: ClassVar[tuple[str, str]] = ("return out + residual;", "return out;")

    def is_in(self, op: Product) -> bool:
        return op.residual

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        """The addition may cancel digits, which makes fp32 rounding errors relatively larger."""
        added = tensors[residual_of(op)]
        sums.compute()
        sums.values = sums.values + added.values
        if added.tolerance is not None:
            sums.error = sums.error + added.tolerance

    def step(self, op: Product) -> str:
        return "add the residual"

    def broken(self, op: Product) -> list[Broken]:
        if not op.residual_source or op.residual:
            return []
        problem = f"names {op.residual_source}, but no residual is added"
        return [("residual_source", problem, "set residual, or leave the source out")]

    def reads(self, op: Product) -> tuple[Read, ...]:
        if not op.residual_source:
            return ()
        remedy = "add a tensor with the op's own m and n"
        return (Read("residual_source", op.residual_source, (op.m, op.n), verb="adds", remedy=remedy),)

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return (given(residual_of(op), (op.m, op.n), residual_dtype(op, dtype)),)

    def listed(self, op: Product, dtype: Dtype, cache: str) -> tuple[tuple[str, Tensor], ...]:
        return tuple(("residual", tensor) for tensor in self.tensors(op, dtype))

    def pointer(self, op: Product) -> str:
        """The added tensor."""
        return residual_of(op)

    def is_in_library(self, op: Product) -> bool:
        """Whether the library applies the residual: it adds one before its activation, so only without an
        activation, and to no product of operands with scales along k."""
        return op.activation is Activation.IDENTITY and not any(part.is_in_front for part in op.epilogue)

    def words(self, op: Product) -> Mapping[str, str]:
        return {"adds": residual_of(op)}

    def late_reads(self, op: Product) -> tuple[tuple[str, bool], ...]:
        return ((residual_of(op), False),)

    def traffic(self, op: Product, dtype: Dtype) -> Traffic:
        return Traffic(element=residual_dtype(op, dtype).size_bytes)

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        return op.m * op.n * residual_dtype(op, dtype).size_bytes

    def own_bytes(self, op: Product, dtype: Dtype, written: Collection[str]) -> int:
        return 0 if op.residual_source else self.num_bytes(op, dtype)
