"""Divides the output by a static factor before it is stored, for elements with few bits; readers multiply by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tuner.core.problem.epilogue.added import AddedPart, Own
from tuner.core.problem.epilogue.part import Product, Stage
from tuner.core.problem.rows.dtype import Array, ArrayModule


@dataclass(frozen=True, kw_only=True)
class OutputScale(AddedPart):
    """The factor is one fp32 number above 0, in memory."""

    name: ClassVar[str] = "output_scale"
    stage: ClassVar[Stage] = Stage.RESULT
    owns: ClassVar[tuple[Own, ...]] = (Own(name="factor"),)
    planted: ClassVar[tuple[str, str]] = ("__fdividef(x, *factor)", "x * *factor")

    def shape(self, op: Product, name: str) -> tuple[int, ...]:
        return (1,)

    def host(self, xp: ArrayModule, values: Array, *tensors: Array) -> Array:
        return values / tensors[0]

    def spread(self, xp: ArrayModule, values: Array, error: Array, *tensors: Array) -> Array:
        return error / xp.abs(tensors[0])

    def is_plain(self, op: Product) -> bool:
        return True
