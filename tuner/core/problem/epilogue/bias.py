"""A vector that is added to every row of the sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import Part, Product, Stage, Traffic
from tuner.core.problem.epilogue.sums import Sums, Tensors
from tuner.core.problem.ops.op import Tensor, weight


class Bias(Part):
    """One element per row of W."""

    field: ClassVar[str] = "bias"
    stage: ClassVar[Stage] = Stage.SUMS
    own_names: ClassVar[tuple[str, ...]] = ("bias",)
    slot: ClassVar[str] = "bias"
    planted: ClassVar[tuple[str, str]] = ("if constexpr (is_there()) sum += bias;", "")

    def is_in(self, op: Product) -> bool:
        return op.bias

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        sums.add(tensors[self.pointer(op)].values)

    def step(self, op: Product) -> str:
        return "add the bias"

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return (weight(self.pointer(op), (op.weight_rows,), dtype),)

    def traffic(self, op: Product, dtype: Dtype) -> Traffic:
        return Traffic(column=op.weight_rows // op.n * dtype.size_bytes)

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        return op.weight_rows * dtype.size_bytes

    def is_in_library(self, op: Product) -> bool:
        return True

    def words(self, op: Product) -> Mapping[str, str]:
        return {"adds": "a bias"}
