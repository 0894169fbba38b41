"""Scales of 8-bit operands that change along k: of inputs for each row and 128 elements, of weights for 128 x 128.

The sums of 128 elements of k are multiplied by both when they are promoted, so no step of the epilogue is left.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, 3.3.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.added import AddedPart, Own
from tuner.core.problem.epilogue.kernel import KernelPart
from tuner.core.problem.epilogue.part import Broken, Draws, Product, Stage
from tuner.core.problem.epilogue.scales.group_scale import BLOCK, GroupOperand, GroupScale
from tuner.core.problem.epilogue.sums import Tensors
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import Op, Role, Tensor
from tuner.core.problem.rows.dtype import Array, ArrayModule


@dataclass(frozen=True, kw_only=True)
class BlockScale(AddedPart):
    """Weights have fp32 scales [rows of W / 128, k / 128], inputs ``<source>.group_scale_factors`` [m, k / 128]: given,
    or written by the op that the product reads."""

    name: ClassVar[str] = "block_scale"
    stage: ClassVar[Stage] = Stage.SUMS
    owns: ClassVar[tuple[Own, ...]] = (Own(name="weights", is_of_blocks=True), Own(name="inputs", role=Role.INPUT))
    kernel: ClassVar[KernelPart] = KernelPart(
        engines=("wgmma",),
        column_blocks=BLOCK,
        max_sums={1: 64, 2: 64, 3: 32},
        max_unswapped_sums={1: 128, 2: 128, 3: 32},
        multiplies="BlockScaled",
    )
    brings_size: ClassVar[bool] = True
    is_in_front: ClassVar[bool] = True
    planted: ClassVar[tuple[str, str]] = ("places[i] + block];", "places[i] + (block ^ 1)];")
    #: The elements that share a scale, and what else may be used, in messages.
    _shared: ClassVar[str] = f"{BLOCK} x {BLOCK} weights"
    _instead: ClassVar[str] = ", or weights e4m3_g128 with 16-bit inputs"

    def tensor_name(self, op: Product, own: Own) -> str:
        return GroupScale.factors_of(op.source) if own.role is Role.INPUT else super().tensor_name(op, own)

    def shape(self, op: Product, name: str) -> tuple[int, ...]:
        return (op.m if name == "inputs" else op.weight_rows // BLOCK, op.k // BLOCK)

    def _names(self, op: Product, role: Role) -> tuple[str, ...]:
        return tuple(self.tensor_name(op, own) for own in self.owns if own.role is role)

    def operands(self, op: Product) -> tuple[str, ...]:
        return self._names(op, Role.WEIGHT)

    def reads(self, op: Product) -> tuple[Read, ...]:
        (name,) = self._names(op, Role.INPUT)
        return (Read("factors", name, (op.m, op.k // BLOCK), blame="k", why="128 columns share one"),)

    def broken(self, op: Product) -> list[Broken]:
        found = super().broken(op)
        for field, size in (("k", op.k), ("n", op.n)):
            if size % BLOCK and (field == "k" or self.operands(op)):
                problem = f"is {size}, but {self.name} has a scale for {self._shared}"
                found.append((field, problem, f"use a multiple of {BLOCK}"))
        if op.weights or op.row_scale:
            what = f"weights in {op.weights}" if op.weights else "a row scale"
            found.append(("epilogue", f"has {self.name} and {what}", "leave one of them out"))
        return found

    def misplaced(self, op: Product, ops: Sequence[Op], dtype: Dtype) -> list[Broken]:
        if not dtype.row.fp8_kind:
            problem = f"has {self.name}, the scales of 8-bit operands, and the dtype is {dtype}"
            return [("epilogue", problem, f"use {Dtype.FP8_E4M3}{self._instead}")]
        made = {tensor.name for one in ops for tensor in one.made}
        if GroupScale.factors_of(op.source) in made or op.source not in {*made, *(one.name for one in ops)}:
            return []
        problem = f"reads {op.source}, which is stored without scales of groups"
        remedy = f"give {op.source} the part {GroupScale.name}, or read the values of a part {GroupOperand.name}"
        return [("epilogue", problem, remedy)]

    def multiplied(self, op: Product, tensors: Tensors, xp: ArrayModule, a: Array, w: Array) -> tuple[Array, Array]:
        of_weights, of_inputs = (tensors[self.tensor_name(op, own)].values for own in self.owns)
        a_groups, w_blocks = a.reshape((-1, op.k // BLOCK, BLOCK)), w.reshape((-1, BLOCK, op.k // BLOCK, BLOCK))
        a_scaled, w_scaled = a_groups * of_inputs[:, :, None], w_blocks * of_weights[:, None, :, None]
        return a_scaled.reshape(a.shape), w_scaled.reshape(w.shape)

    def apply(self, op: Product, sums: Any, tensors: Tensors) -> None:
        """Nothing: `multiplied` has scaled the operands."""

    def host(self, xp: ArrayModule, values: Array, *tensors: Array) -> Array:
        return values

    def spread(self, xp: ArrayModule, values: Array, error: Array, *tensors: Array) -> Array:
        return error

    def draw(self, op: Product, tensor: Tensor, draws: Draws) -> Any:
        drawn = draws.factors(tensor.shape)
        return drawn * op.k**-0.5 if tensor.role is Role.WEIGHT else drawn

    def late_reads(self, op: Product) -> tuple[tuple[str, bool], ...]:
        return ()

    def step_reads(self, op: Product) -> tuple[str, ...]:
        return self._names(op, Role.INPUT)

    def own_bytes(self, op: Product, dtype: Dtype, written: Collection[str]) -> int:
        read = (one for one in self.tensors(op, dtype) if one.role is Role.WEIGHT or op.source not in written)
        return sum(tensor.num_bytes for tensor in read)

    def is_plain(self, op: Product) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class InputScale(BlockScale):
    """The same for inputs alone; scales of weights commute with the sum over k."""

    name: ClassVar[str] = "input_scale"
    owns: ClassVar[tuple[Own, ...]] = (Own(name="inputs", role=Role.INPUT),)
    kernel: ClassVar[KernelPart] = replace(BlockScale.kernel, multiplies="InputScaled")
    _shared: ClassVar[str] = f"{BLOCK} elements of a row"
    _instead: ClassVar[str] = ""

    @classmethod
    def wgmma_file(cls) -> str:
        return BlockScale.wgmma_file()

    def multiplied(self, op: Product, tensors: Tensors, xp: ArrayModule, a: Array, w: Array) -> tuple[Array, Array]:
        (name,) = self._names(op, Role.INPUT)
        groups = a.reshape((-1, op.k // BLOCK, BLOCK))
        return (groups * tensors[name].values[:, :, None]).reshape(a.shape), w
