"""A matrix that is added behind the activation, before rounding."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from tuner.core.problem.dataflow import Read
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import Broken, Part, Product
from tuner.core.problem.op import Tensor, given


def residual_of(op: Product) -> str:
    """The tensor that is added, where one is."""
    return op.residual_source or f"{op.name}.residual"


class Residual(Part):
    """A tensor that the op names, or an input of its own."""

    field: ClassVar[str] = "residual"
    own_names: ClassVar[tuple[str, ...]] = ("residual",)

    def is_in(self, op: Product) -> bool:
        return op.residual

    def broken(self, op: Product) -> list[Broken]:
        if not op.residual_source or op.residual:
            return []
        problem = f"names {op.residual_source}, and no residual is added"
        return [("residual_source", problem, "set residual, or name no source")]

    def reads(self, op: Product) -> tuple[Read, ...]:
        if not op.residual_source:
            return ()
        remedy = "add a tensor of the op's own m and n"
        return (Read("residual_source", op.residual_source, (op.m, op.n), verb="adds", remedy=remedy),)

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return (given(residual_of(op), (op.m, op.n), dtype),)

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        return op.m * op.n * dtype.size_bytes

    def own_bytes(self, op: Product, dtype: Dtype, written: Collection[str]) -> int:
        return 0 if op.residual_source else self.num_bytes(op, dtype)
