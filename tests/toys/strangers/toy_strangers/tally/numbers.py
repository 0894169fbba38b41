"""The reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toy_strangers.tally.op import TallyOp
from toy_strangers.tally.schedule import TallySchedule
from toy_strangers.tally.source import source_of
from tuner.extend import Dtype, Expected

_FP32 = 2.0**-24


def reference(op: TallyOp, given: Mapping[str, Any], dtype: Dtype, xp: Any) -> Mapping[str, Expected]:
    """Includes the state after the launch: an fp32 sum is rounded once, and the output once more."""
    state, count = given[f"{op.name}.state"].copy(), int(given[f"{op.name}.count"][0])
    state[:count] += given[op.source][:count]
    off = 2 * _FP32 * xp.abs(state) + 1e-30
    rounded = dtype.row.roundoff * xp.abs(state) + dtype.row.smallest_step
    return {
        op.name: Expected(values=state, tolerance=rounded + 2 * off),
        f"{op.name}.state": Expected(values=state, tolerance=off),
    }


def planted(op: TallyOp, schedule: TallySchedule, dtype: Dtype) -> Mapping[str, str]:
    """Sources with one fault each."""
    right = source_of(op, schedule, dtype)
    return {
        "the state is not kept": right.replace("args.state[place] = sum;", ""),
        "the count is not read": right.replace("row < *args.count", "true"),
        "it is added twice": right.replace("2.0f * args.half", "4.0f * args.half"),
    }
