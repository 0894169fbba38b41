"""Writes the output a second time, as an operand of later products with a scale for each row and 128 columns.

As `operand`, it has the weights of a norm, whose factor per row commutes with the products; its scales are not static
but computed by the tile that writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.added import AddedPart, Own
from tuner.core.problem.epilogue.kernel import KernelPart
from tuner.core.problem.epilogue.part import Broken, Product, Stage
from tuner.core.problem.epilogue.scales.group_scale import BLOCK, GroupScale, grouped, misplaced
from tuner.core.problem.epilogue.sums import EPILOGUE_ERROR, Sums, Tensors
from tuner.core.problem.ops.op import Op, Role
from tuner.core.problem.rows.dtype import Array, ArrayModule


@dataclass(frozen=True, kw_only=True)
class GroupOperand(AddedPart):
    """Later products read ``<op>.group_operand_values`` [m, n] as their source, times the scales
    ``<op>.group_operand_values.group_scale_factors`` [m, n / 128]; the output itself is unchanged."""

    name: ClassVar[str] = "group_operand"
    stage: ClassVar[Stage] = Stage.RESULT
    owns: ClassVar[tuple[Own, ...]] = (
        Own(name="factors"),
        Own(name="values", dtype="", role=Role.OUTPUT),
        Own(name="scales", role=Role.OUTPUT),
    )
    kernel: ClassVar[KernelPart] = KernelPart(
        engines=("wgmma",),
        tile_columns=BLOCK,
        max_sums={1: 64, 2: 64, 3: 32},
        exchanges=True,
        watches="GroupedOperand",
    )
    planted: ClassVar[tuple[str, str]] = ("out[r] * factor;", "out[r];")

    @classmethod
    def wgmma_file(cls) -> str:
        return GroupScale.wgmma_file()

    @classmethod
    def values_of(cls, op: str) -> str:
        """The name of the operand that the op named `op` writes."""
        return f"{op}.{cls.name}_values"

    def tensor_name(self, op: Product, own: Own) -> str:
        return GroupScale.factors_of(self.values_of(op.name)) if own.name == "scales" else super().tensor_name(op, own)

    def shape(self, op: Product, name: str) -> tuple[int, ...]:
        return {"factors": (op.n,), "values": (op.m, op.n), "scales": (op.m, op.n // BLOCK)}[name]

    def broken(self, op: Product) -> list[Broken]:
        found = super().broken(op)
        if op.n % BLOCK:
            problem = f"is {op.n}, but {self.name} has a scale for {BLOCK} columns"
            found.append(("n", problem, f"use a multiple of {BLOCK}"))
        if op.gated:
            found.append(
                ("gated", f"is true, but {self.name} needs the registers of its sums", "leave one of them out")
            )
        return found

    def misplaced(self, op: Product, ops: Sequence[Op], dtype: Dtype) -> list[Broken]:
        return misplaced(self, self.values_of(op.name), ops, dtype)

    def host(self, xp: ArrayModule, values: Array, *tensors: Array) -> Array:
        return values

    def spread(self, xp: ArrayModule, values: Array, error: Array, *tensors: Array) -> Array:
        return error

    def made(self, op: Product, sums: Sums, tensors: Tensors) -> Mapping[str, tuple[Array, Array]]:
        factors, values, scales = (self.tensor_name(op, own) for own in self.owns)
        product = sums.values * tensors[factors].values
        error = sums.error * sums.xp.abs(tensors[factors].values) + EPILOGUE_ERROR * sums.xp.abs(product)
        of_groups, divided = grouped(sums.xp, product, error)
        return {values: divided, scales: of_groups}

    def is_plain(self, op: Product) -> bool:
        return True
