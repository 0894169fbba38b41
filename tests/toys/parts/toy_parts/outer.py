"""Adds an outer product of a vector over rows and one over columns, as routed experts need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tuner.extend import AddedPart, Own, Product, Role, Stage


@dataclass(frozen=True, kw_only=True)
class Outer(AddedPart):
    """Two tensors: one is constant and fp32; the other is given at each launch, in the product's type."""

    name: ClassVar[str] = "outer"
    stage: ClassVar[Stage] = Stage.OUTPUT
    owns: ClassVar[tuple[Own, ...]] = (Own(name="columns"), Own(name="rows", dtype="", role=Role.INPUT))
    planted: ClassVar[tuple[str, str]] = ("rows[row]", "rows[0]")

    def shape(self, op: Product, name: str) -> tuple[int, ...]:
        return (op.n,) if name == "columns" else (op.m, 1)

    def host(self, xp: Any, values: Any, *tensors: Any) -> Any:
        columns, rows = tensors
        return values + columns * rows

    def spread(self, xp: Any, values: Any, error: Any, *tensors: Any) -> Any:
        columns, rows = tensors
        return error + 2.0**-22 * xp.abs(columns * rows)
