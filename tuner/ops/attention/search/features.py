"""The model's features of an attention's schedules: its axes, and how its tasks fill the last wave."""

from __future__ import annotations

import math
from dataclasses import fields

from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.axis import FeaturesOf, axes_of
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import num_attention_clusters
from tuner.ops.attention.schedule import AttentionSchedule, AttentionTiling

_COMPILED = {one.name for one in fields(AttentionTiling)}
_KERNEL, _PLAN = (
    FeaturesOf(AttentionSchedule, [name for name in axes_of(AttentionSchedule) if (name in _COMPILED) is is_compiled])
    for is_compiled in (True, False)
)


def kernel_features(schedule: AttentionSchedule) -> list[float]:
    """The features that are compiled into a kernel, which its speed depends on."""
    return _KERNEL(schedule)


def plan_features(schedule: AttentionSchedule, op: AttentionOp, gpu: Gpu) -> list[float]:
    """The features that are arguments of a launch, and how well its tasks fill the last wave."""
    spans = schedule.num_spans(op.shape)
    waves = spans * op.shape.sequences * op.shape.kv_heads / num_attention_clusters(gpu, schedule.cluster)
    return [math.log2(spans), math.log2(math.ceil(waves) / waves), *_PLAN(schedule)]
