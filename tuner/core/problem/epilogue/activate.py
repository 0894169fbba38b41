"""The activation: a function of each element."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from tuner.core.problem.activation import Activation
from tuner.core.problem.epilogue.part import Part, Product, Stage
from tuner.core.problem.epilogue.sums import Sums, Tensors


class Activate(Part):
    """Activates the output, or only the gate's half."""

    field: ClassVar[str] = "activation"
    stage: ClassVar[Stage] = Stage.OUTPUT
    planted: ClassVar[tuple[str, str]] = ("activate<kOps[kOp].activation>(", "(")

    def is_in(self, op: Product) -> bool:
        return op.activation is not Activation.IDENTITY

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        row, values, error = op.activation.row, sums.values, sums.error
        if not op.gated:
            sums.apply(partial(row.host, sums.xp), partial(row.spread, sums.xp))
            return
        gate, gate_error = values[:, : op.n], error[:, : op.n]
        sums.replace(
            sums.xp.concatenate([row.host(sums.xp, gate), values[:, op.n :]], axis=1),
            sums.xp.concatenate([row.spread(sums.xp, gate, gate_error), error[:, op.n :]], axis=1),
        )

    def step(self, op: Product) -> str:
        return f"apply {op.activation}"

    def is_in_library(self, op: Product) -> bool:
        return op.activation.row.library is not None and not op.gated

    def likeness(self, op: Product) -> object:
        return op.activation

    def is_plain(self, op: Product) -> bool:
        return op.gated or op.activation.row.is_plain

    def words(self, op: Product) -> Mapping[str, str]:
        return {"function": str(op.activation)}
