"""Writes the output a second time, as an operand of later products: multiplied by a factor per column, in the
operands' type.

So a residual stream stays in 16 bits while products read it in 8. The factors are a norm's weights, which cannot be
folded into quantised weights, divided by a static scale. As usual, the norm's factor per row commutes with the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tuner.core.problem.epilogue.added import AddedPart, Own
from tuner.core.problem.epilogue.part import Product, Stage
from tuner.core.problem.epilogue.sums import EPILOGUE_ERROR, Sums, Tensors
from tuner.core.problem.ops.op import Role
from tuner.core.problem.rows.dtype import Array, ArrayModule


@dataclass(frozen=True, kw_only=True)
class Operand(AddedPart):
    """Later products read ``<op>.operand_values`` [m, n] as their source; the output itself is unchanged."""

    name: ClassVar[str] = "operand"
    stage: ClassVar[Stage] = Stage.RESULT
    owns: ClassVar[tuple[Own, ...]] = (Own(name="factors"), Own(name="values", dtype="", role=Role.OUTPUT))
    planted: ClassVar[tuple[str, str]] = ("x * factors[column]", "x * factors[column ^ 1]")

    @classmethod
    def values_of(cls, op: str) -> str:
        """The name of the operand that the op named `op` writes."""
        return f"{op}.{cls.name}_values"

    def shape(self, op: Product, name: str) -> tuple[int, ...]:
        return (op.m, op.n) if name == "values" else (op.n,)

    def host(self, xp: ArrayModule, values: Array, *tensors: Array) -> Array:
        return values

    def spread(self, xp: ArrayModule, values: Array, error: Array, *tensors: Array) -> Array:
        return error

    def made(self, op: Product, sums: Sums, tensors: Tensors) -> Mapping[str, tuple[Array, Array]]:
        factors, values = (self.tensor_name(op, own) for own in self.owns)
        product = sums.values * tensors[factors].values
        error = sums.error * sums.xp.abs(tensors[factors].values) + EPILOGUE_ERROR * sums.xp.abs(product)
        return {values: (product, error)}

    def is_plain(self, op: Product) -> bool:
        return True
