"""A factor for each row of W, as for weights of few bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tuner.extend import AddedPart, Own, Stage


@dataclass(frozen=True, kw_only=True)
class ColumnScale(AddedPart):
    """The factors are fp32; a gated op has factors for both halves."""

    name: ClassVar[str] = "column_scale"
    stage: ClassVar[Stage] = Stage.SUMS
    owns: ClassVar[tuple[Own, ...]] = (Own(name="factors"),)
    planted: ClassVar[tuple[str, str]] = ("factors[column]", "factors[row]")

    def host(self, xp: Any, values: Any, *tensors: Any) -> Any:
        return values * tensors[0]

    def spread(self, xp: Any, values: Any, error: Any, *tensors: Any) -> Any:
        return error * xp.abs(tensors[0])
