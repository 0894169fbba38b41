"""cap * tanh(x / cap), which bounds logits.

Source: Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tuner.extend import AddedPart, Product, Stage


@dataclass(frozen=True, kw_only=True)
class Softcap(AddedPart):
    """Applied after a gate and before a residual."""

    name: ClassVar[str] = "softcap"
    stage: ClassVar[Stage] = Stage.OUTPUT
    planted: ClassVar[tuple[str, str]] = ("times_logistic(2.0f * cap", "times_logistic(2.1f * cap")

    #: No element is larger.
    cap: float

    def problem(self, op: Product) -> tuple[str, str]:
        return ("", "") if self.cap > 0 else (f"has a cap of {self.cap}", "give one above 0")

    def host(self, xp: Any, values: Any, *tensors: Any) -> Any:
        return self.cap * xp.tanh(values / self.cap)

    def spread(self, xp: Any, values: Any, error: Any, *tensors: Any) -> Any:
        return error + 1e-6 * self.cap  # its slope is at most 1; the logistic function is accurate to one or two ulp
