"""RMSNorm of the rows of A: one factor per row, from the sum of its squares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import ROW_SCALE_BYTES, Broken, Draws, Part, Product, Stage
from tuner.core.problem.epilogue.sums import Sums, Tensors
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import Tensor, given

#: The sums of squares of a slot are padded to whole vectors of four.
SLOT_ALIGNMENT = 4
#: Keeps a row of zeros finite; the value that Llama 3 and Qwen 2.5 use.
DEFAULT_EPS = 1e-5


def slot_stride(num_rows: int) -> int:
    """Padded number of elements for the sums of squares of `num_rows` rows."""
    return -(-num_rows // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


class Norm(Part):
    """An earlier op stores the sums of squares of its output; for an input, the caller provides them."""

    field: ClassVar[str] = "norm"
    stage: ClassVar[Stage] = Stage.SUMS
    scales_rows: ClassVar[bool] = True
    slot: ClassVar[str] = "row_scale"
    is_in_front: ClassVar[bool] = True
    planted: ClassVar[tuple[str, str]] = ("return rsqrtf(", "return 1.01f * rsqrtf(")

    def is_in(self, op: Product) -> bool:
        return bool(op.norm)

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        """The factor of a row depends on the rounded row. A library that multiplies the scaled row rounds it again
        after scaling. Each of the two errors is within one roundoff of the scaled value."""
        rows = tensors[op.norm].values
        sums.scale((1 / sums.xp.sqrt((rows**2).mean(axis=1) + op.eps))[:, None])
        if op.norm == op.source:
            sums.error += 2 * sums.row.roundoff * sums.held
        else:
            sums.compute()

    def step(self, op: Product) -> str:
        return f"norm by {op.norm}"

    def broken(self, op: Product) -> list[Broken]:
        found: list[Broken] = []
        if op.norm and op.row_scale:
            problem = f"the norm of {op.norm} and a row scale would both scale the rows"
            found.append(("norm", problem, "set the norm or the row scale, not both"))
        if not op.norm and op.eps != DEFAULT_EPS:
            found.append(("eps", "belongs to a norm, but there is none", "leave it out"))
        if not 0 <= op.eps < 1:
            found.append(("eps", f"must be at least 0 and below 1, got {op.eps}", "for example 1e-5"))
        return found

    def reads(self, op: Product) -> tuple[Read, ...]:
        why, remedy = (
            "that is a norm over a width that no op writes completely",
            "normalize the tensor that the op reads as A",
        )
        return (Read("norm", op.norm, (op.m, op.k), verb="norms", why=why, remedy=remedy),)

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return given(op.norm, (op.m, op.k), dtype), given(self.pointer(op), (op.m,), "fp32")

    def listed(self, op: Product, dtype: Dtype, cache: str) -> tuple[tuple[str, Tensor], ...]:
        """Only the sums of squares, with their padded size."""
        return (("input_squares", given(self.pointer(op), (slot_stride(op.m),), "fp32")),)

    def operands(self, op: Product) -> tuple[str, ...]:
        return (self.pointer(op),) if op.norm else ()

    def pointer(self, op: Product) -> str:
        """The sums of squares of the normalized tensor."""
        return f"{op.norm}.squares"

    def draw(self, op: Product, tensor: Tensor, draws: Draws) -> Any:
        return draws.squares(op.norm) if tensor.name == self.pointer(op) else super().draw(op, tensor, draws)

    def is_plain(self, op: Product) -> bool:
        return True

    def words(self, op: Product) -> Mapping[str, str]:
        return {"norm": op.norm}

    def late_reads(self, op: Product) -> tuple[tuple[str, bool], ...]:
        """Sums of squares of its rows, to which every tile of these rows contributes."""
        return ((op.norm, True),)

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        return op.m * ROW_SCALE_BYTES

    def own_bytes(self, op: Product, dtype: Dtype, written: Collection[str]) -> int:
        return 0 if op.norm in written else self.num_bytes(op, dtype)
