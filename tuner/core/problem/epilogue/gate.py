"""Multiplies the activated gate by the up projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tuner.core.problem.epilogue.part import Part, Product, Stage
from tuner.core.problem.epilogue.sums import Sums, Tensors


class Gate(Part):
    """In W, the gate's rows come before the up projection's."""

    field: ClassVar[str] = "gated"
    stage: ClassVar[Stage] = Stage.OUTPUT
    rows_per_column: ClassVar[int] = 2
    halves: ClassVar[str] = "a gate and an up projection"
    planted: ClassVar[tuple[str, str]] = ("return gate * up;", "return gate;")

    def is_in(self, op: Product) -> bool:
        return op.gated

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        """(f + d)(z + e) - f z = d z + f e + d e, with |d| the error of the gate and e that of the up projection."""
        gate, up = sums.values[:, : op.n], sums.values[:, op.n :]
        gate_error, up_error = sums.error[:, : op.n], sums.error[:, op.n :]
        size = sums.xp.abs
        error = gate_error * size(up) + size(gate) * up_error + gate_error * up_error
        sums.replace(gate * up, error)

    def step(self, op: Product) -> str:
        return "multiply by the up projection"

    def is_plain(self, op: Product) -> bool:
        return True

    def words(self, op: Product) -> Mapping[str, str]:
        return {"sizes": "gated"}
