"""The reference of a running mean, and its error bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toy_operands.common import wide
from toy_operands.running.op import RunningOp

_FP32_ROUNDOFF = 2.0**-24


def reference(
    xp: Any, op: RunningOp, a: Any, w: Any, *, roundoff: float, off: Any = None, others: Mapping[str, Any] | None = None
) -> Mapping[str, tuple[Any, Any]]:
    """The output and the new state, [m, n] float64, from the state before the launch."""
    assert others is not None
    before, _ = others[f"{op.name}.state"]
    now = op.keep * before.astype(xp.float64) + a
    error = wide(xp, a, roundoff, off) + 4 * _FP32_ROUNDOFF * (xp.abs(before) + xp.abs(a))
    return {op.name: (now, error), f"{op.name}.state": (now, error)}
