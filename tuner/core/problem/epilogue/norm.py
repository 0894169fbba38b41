"""RMSNorm of the rows of A: a factor a row, from the sum of its squares."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from tuner.core.problem.dataflow import Read
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import ROW_SCALE_BYTES, Broken, Part, Product
from tuner.core.problem.op import Tensor, given

#: What keeps a row of zeros finite, where nothing else is said: that of Llama 3 and Qwen 2.5.
DEFAULT_EPS = 1e-5


class Norm(Part):
    """An earlier op leaves the sums of squares of its output; of an input they are given."""

    field: ClassVar[str] = "norm"
    scales_rows: ClassVar[bool] = True

    def is_in(self, op: Product) -> bool:
        return bool(op.norm)

    def broken(self, op: Product) -> list[Broken]:
        found: list[Broken] = []
        if op.norm and op.row_scale:
            problem = f"the norm of {op.norm} and a row scale both scale the rows"
            found.append(("norm", problem, "give the norm or the row scale"))
        if not op.norm and op.eps != DEFAULT_EPS:
            found.append(("eps", "belongs to a norm, and there is none", "leave it out"))
        if not 0 <= op.eps < 1:
            found.append(("eps", f"must be at least 0 and below 1, got {op.eps}", "give such as 1e-5"))
        return found

    def reads(self, op: Product) -> tuple[Read, ...]:
        why, remedy = "that is a norm over a width that no op writes whole", "norm what the op reads as A"
        return (Read("norm", op.norm, (op.m, op.k), verb="norms", why=why, remedy=remedy),)

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return given(op.norm, (op.m, op.k), dtype), given(f"{op.norm}.squares", (op.m,), "fp32")

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        return op.m * ROW_SCALE_BYTES

    def own_bytes(self, op: Product, dtype: Dtype, written: Collection[str]) -> int:
        return 0 if op.norm in written else self.num_bytes(op, dtype)
