"""The reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from toy_strangers.absmax.op import AbsmaxOp
from toy_strangers.absmax.schedule import AbsmaxSchedule
from toy_strangers.absmax.source import source_of
from tuner.extend import Dtype, Expected, Tensor


def draw(op: AbsmaxOp, tensor: Tensor, turn: int, random: np.random.Generator) -> Any:
    """In checks with odd numbers, the first row is zeros."""
    values = random.standard_normal(tensor.shape)
    values[0] *= turn % 2 == 0
    return values


def reference(op: AbsmaxOp, given: Mapping[str, Any], dtype: Dtype, xp: Any) -> Mapping[str, Expected]:
    """Scales are elements of x, and therefore exact; a quotient is rounded twice."""
    x = given[op.source]
    scale = xp.abs(x).max(axis=1)
    out = xp.where(scale[:, None] > 0, x / xp.where(scale > 0, scale, 1)[:, None], 0)
    tolerance = 2 * dtype.row.roundoff * xp.abs(out) + dtype.row.smallest_step
    of_sign = {op.name: out, f"{op.name}.negated": -out}
    found = {name: Expected(values=values, tolerance=tolerance) for name, values in of_sign.items()}
    return found | {f"{op.name}.scale": Expected(values=scale)}


def planted(op: AbsmaxOp, schedule: AbsmaxSchedule, dtype: Dtype) -> Mapping[str, str]:
    """Sources with one fault each."""
    right = source_of(op, schedule, dtype)
    return {
        "signs count": right.replace("fabsf(widen", "(widen"),
        "zeros are divided": right.replace("largest > 0.0f ?", "true ?"),
        "a sign is missing": right.replace("narrow(-quotient)", "narrow(quotient)"),
        "a scale is another row's": right.replace("args.scale[blockIdx.x] =", "args.scale[blockIdx.x ^ 1] ="),
    }
