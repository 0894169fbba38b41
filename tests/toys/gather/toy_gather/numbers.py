"""The reference of a gather, and planted faults that the check must find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toy_gather.op import GatherOp
from toy_gather.schedule import GatherSchedule
from toy_gather.source import source_of
from tuner.extend import Dtype, Expected


def reference(op: GatherOp, given: Mapping[str, Any], dtype: Dtype, xp: Any) -> Mapping[str, Expected]:
    """Each sum is rounded once."""
    rows, count = given[f"{op.name}.rows"], int(given[f"{op.name}.count"][0])
    sums = given[op.source] + given[f"{op.name}.table"][rows]
    sums[count:] = 0
    return {op.name: Expected(values=sums, tolerance=dtype.row.roundoff * xp.abs(sums) + dtype.row.smallest_step)}


def planted(op: GatherOp, schedule: GatherSchedule, dtype: Dtype) -> Mapping[str, str]:
    """Sources with one fault each."""
    right = source_of(op, schedule, dtype)
    return {
        "the count is not read": right.replace("min(max(*args.count, 0), args.m)", "args.m"),
        "rows are shifted": right.replace("args.rows[row]", "args.rows[row ^ 1]"),
        "x is not added": right.replace("one = args.x[row * ", "one = args.x[0 * "),
    }
