"""Multiplies row i of the sums by element i of a given vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import ROW_SCALE_BYTES, Part, Product, Stage, Traffic
from tuner.core.problem.epilogue.sums import Sums, Tensors
from tuner.core.problem.ops.op import Tensor, given


class RowScale(Part):
    """The factors are fp32."""

    field: ClassVar[str] = "row_scale"
    stage: ClassVar[Stage] = Stage.SUMS
    scales_rows: ClassVar[bool] = True
    own_names: ClassVar[tuple[str, ...]] = ("row_scale",)
    slot: ClassVar[str] = "row_scale"
    planted: ClassVar[tuple[str, str]] = ("if constexpr (scales_rows(kOp)) sum *= scale;", "")

    def is_in(self, op: Product) -> bool:
        return op.row_scale

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        sums.scale(tensors[self.pointer(op)].values[:, None])

    def step(self, op: Product) -> str:
        return "scale the rows"

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return (given(self.pointer(op), (op.m,), "fp32"),)

    def traffic(self, op: Product, dtype: Dtype) -> Traffic:
        return Traffic(row=ROW_SCALE_BYTES)

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        return op.m * ROW_SCALE_BYTES

    def is_plain(self, op: Product) -> bool:
        return True

    def words(self, op: Product) -> Mapping[str, str]:
        return {"norm": "a factor per row, as an input"}

    def torch(self, op: Product) -> str:
        return "PyTorch has no call that scales the rows of a product: compare without a row scale"
