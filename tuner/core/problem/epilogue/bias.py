"""A vector that is added to every row of the sums."""

from __future__ import annotations

from typing import ClassVar

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import Part, Product
from tuner.core.problem.op import Tensor, weight


class Bias(Part):
    """An element for each row of W."""

    field: ClassVar[str] = "bias"
    own_names: ClassVar[tuple[str, ...]] = ("bias",)

    def is_in(self, op: Product) -> bool:
        return op.bias

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return (weight(f"{op.name}.bias", (op.weight_rows,), dtype),)

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        return op.weight_rows * dtype.size_bytes
