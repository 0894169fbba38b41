"""The activated gate, times the up projection."""

from __future__ import annotations

from typing import ClassVar

from tuner.core.problem.epilogue.part import Part, Product


class Gate(Part):
    """W has the gate's rows above the up projection's."""

    field: ClassVar[str] = "gated"
    rows_per_column: ClassVar[int] = 2

    def is_in(self, op: Product) -> bool:
        return op.gated
