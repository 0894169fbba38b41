"""Row i of the sums, times element i of a given vector."""

from __future__ import annotations

from typing import ClassVar

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import ROW_SCALE_BYTES, Part, Product
from tuner.core.problem.op import Tensor, given


class RowScale(Part):
    """The factors are fp32."""

    field: ClassVar[str] = "row_scale"
    scales_rows: ClassVar[bool] = True
    own_names: ClassVar[tuple[str, ...]] = ("row_scale",)

    def is_in(self, op: Product) -> bool:
        return op.row_scale

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return (given(f"{op.name}.row_scale", (op.m,), "fp32"),)

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        return op.m * ROW_SCALE_BYTES
