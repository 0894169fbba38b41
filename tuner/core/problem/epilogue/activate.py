"""The activation: a function of each element."""

from __future__ import annotations

from typing import ClassVar

from tuner.core.problem.activation import Activation
from tuner.core.problem.epilogue.part import Part, Product


class Activate(Part):
    """Of the gate's half where there is one."""

    field: ClassVar[str] = "activation"

    def is_in(self, op: Product) -> bool:
        return op.activation is not Activation.IDENTITY
