"""Pairs of convolutions in one CTA, with schedules."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.schedule import ConvPairSchedule

#: A request for the last two convolutions of a block of ResNet-50's first stage, without a shortcut.
ASKED: dict[str, Any] = {
    "kind": "conv-pair",
    "images": 1,
    "height": 56,
    "width": 56,
    "channels": 64,
    "first": {"filters": 64, "kernel": 3, "stride": 1},
    "second": {"filters": 256, "kernel": 1, "stride": 1},
}


def pair(**options: Any) -> ConvPairOp:
    """Two 3x3 convolutions of two images of 9 x 11 with 64 channels; options are fields of the op."""
    sizes = {"images": 2, "height": 9, "width": 11, "channels": 64, "between": 64, "filters": 64}
    filters = {"first_kernel": 3, "first_padding": 1, "second_kernel": 3, "second_padding": 1}
    return ConvPairOp(**{"name": "both", **sizes, **filters, **options})


def workload(op: ConvPairOp, dtype: Dtype = Dtype.FP16) -> Workload:
    """A chain of one op."""
    return Workload(kind=WorkloadKind.CHAIN, ops=(op,), dtype=dtype)


#: Op, schedule and element type by name.
CASES: dict[str, tuple[ConvPairOp, ConvPairSchedule, Dtype]] = {
    "two images": (pair(), ConvPairSchedule(rows=8, columns=8), Dtype.FP16),
    "1x1 first, together, bf16": (
        pair(first_kernel=1, first_padding=0, channels=128, filters=128),
        ConvPairSchedule(rows=4, columns=8, warpgroups=2, together=True),
        Dtype.BF16,
    ),
    "1x1 second": (
        pair(second_kernel=1, second_padding=0, filters=256, activation=Activation.SILU),
        ConvPairSchedule(rows=7, columns=8, warpgroups=2),
        Dtype.FP16,
    ),
    "a stride first": (pair(first_stride=2, height=18, width=21), ConvPairSchedule(rows=4, columns=7), Dtype.FP16),
    "a stride second": (
        pair(second_stride=2, height=18, width=21),
        ConvPairSchedule(rows=4, columns=4, warpgroups=2),
        Dtype.FP16,
    ),
    "no padding, pixels shared": (
        pair(second_padding=0, first_padding=0, bias=False),
        ConvPairSchedule(rows=4, columns=7, warpgroups=2, together=True),
        Dtype.FP16,
    ),
    "128 between, both strides": (
        pair(between=128, channels=16, first_stride=2, second_stride=2, height=30, width=30),
        ConvPairSchedule(rows=2, columns=4),
        Dtype.FP16,
    ),
    "an added image": (
        pair(second_kernel=1, second_padding=0, filters=256, residual_source="shortcut"),
        ConvPairSchedule(rows=4, columns=8),
        Dtype.FP16,
    ),
    "its own images are added, pixels shared, bf16": (
        pair(residual_source="x"),
        ConvPairSchedule(rows=4, columns=7, warpgroups=2, together=True),
        Dtype.BF16,
    ),
    "an added image, filters shared, silu": (
        pair(residual_source="shortcut", filters=256, second_kernel=1, second_padding=0, activation=Activation.SILU),
        ConvPairSchedule(rows=7, columns=7, warpgroups=2, together=True),
        Dtype.FP16,
    ),
    "an added image, a tile each": (
        pair(residual_source="shortcut", bias=False, between=64, channels=16, first_kernel=1, first_padding=0),
        ConvPairSchedule(rows=7, columns=4, warpgroups=2),
        Dtype.FP16,
    ),
}
