"""The reference of a split, and its error bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toy_operands.common import wide
from toy_operands.split.op import SplitOp


def reference(
    xp: Any, op: SplitOp, a: Any, w: Any, *, roundoff: float, off: Any = None, others: Mapping[str, Any] | None = None
) -> Mapping[str, tuple[Any, Any]]:
    """Both outputs [m, n] in float64, each with its error bound."""
    assert others is not None
    (y, y_off), (factors, _) = others[op.gate], others[f"{op.name}.factors"]
    x_off, y_off = wide(xp, a, roundoff, off), wide(xp, y, 0.0, y_off)
    out, rest = factors * xp.maximum(a, 0), xp.minimum(a, 0) * y
    return {
        op.name: (out, factors * x_off),
        f"{op.name}.rest": (rest, x_off * xp.abs(y) + xp.abs(a) * y_off + x_off * y_off),
    }
