"""The reference of a pair of convolutions, and planted faults that the check must find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.core.problem.dtype import Dtype
from tuner.core.trial.reports.numbers import Expected
from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.ops.conv.pair.source import source_of
from tuner.ops.conv.reference import reference as sums_of


def reference(op: ConvPairOp, given: Mapping[str, Any], dtype: Dtype, xp: Any) -> Mapping[str, Expected]:
    """Both convolutions in float64. The images between are rounded once; their roundoff is part of the second one's
    error."""
    row = dtype.row
    images = given[op.source].reshape(-1, op.channels)
    between, _ = _activated(xp, op, op.first, images, given, row.sum_roundoff)
    values, more = _activated(xp, op, op.second, between, given, row.sum_roundoff + 2 * row.roundoff)
    tolerance = more + 2 * row.roundoff * xp.abs(values) + row.smallest_step
    shape = (op.images, op.second.out_height, op.second.out_width, op.filters)
    return {op.name: Expected(values=values.reshape(shape), tolerance=tolerance.reshape(shape))}


def _activated(
    xp: Any, op: ConvPairOp, conv: ConvOp, images: Any, given: Mapping[str, Any], roundoff: float
) -> tuple[Any, Any]:
    """The output of one of both [pixels, filters], and its error before it is rounded."""
    filters = given[f"{conv.name}.w"].reshape(conv.filters, conv.k)
    sums, error = sums_of(xp, conv, images, filters, roundoff=roundoff)
    if conv.residual:
        sums = sums + given[conv.residual_source].reshape(conv.m, conv.filters)
    if op.bias:
        sums = sums + given[f"{conv.name}.bias"]
    row = op.activation.row
    return row.host(xp, sums), row.spread(xp, sums, error)


def planted(op: ConvPairOp, schedule: ConvPairSchedule, dtype: Dtype) -> Mapping[str, str]:
    """Sources with one fault each."""
    right = source_of(op, schedule, dtype)
    faults = {
        "padding of the neighbouring image": ("static_cast<u32>(y) < kHeight && ", ""),
        "pixels around the images between are not zero": ("low = high = 0.0f;", ";"),
        "a column of the halo is missing": ("x < Middle::kColumns ?", "x + 1 < Middle::kColumns ?"),
        "transposed filters": ("Region::kPhaseColumns + right / kStride", "Region::kPhaseColumns + down / kStride"),
        "no bias": ("low + low_bias", "low"),
    }
    if op.residual_source:
        faults |= {
            "no added image": ("add_staged(sums, stage, from2);", ";"),
            "the added image of the first filters": ("added + from * kFilters + 64 * block", "added + from * kFilters"),
            "an image is added to the neighbouring pixel": (
                "+ column) * kStagePitch + 16 * (i % 8),\n",
                "+ (column ^ 1)) * kStagePitch + 16 * (i % 8),\n",
            ),
        }
    assert all(before in right for before, _ in faults.values())
    return {what: right.replace(before, after) for what, (before, after) in faults.items()}
