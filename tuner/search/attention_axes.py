"""The axes of an attention's schedule as numbers that a model can compare."""

from __future__ import annotations

import math

from tuner.core.plan.attention import num_attention_clusters
from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.attention import AttentionSchedule


def kernel_features(schedule: AttentionSchedule) -> list[float]:
    """What is compiled, in powers of two: what a kernel's speed hangs on."""
    return [
        math.log2(schedule.cluster),
        math.log2(schedule.tile_tokens),
        math.log2(schedule.math_warps),
        0.5 * math.log2(1 + schedule.finish_warps),
        math.log2(schedule.num_stages * schedule.tile_tokens),
        0.3 * math.log2(schedule.parts_at_once),
    ]


def plan_features(schedule: AttentionSchedule, op: AttentionOp, gpu: Gpu) -> list[float]:
    """What a launch is told, and how well its tasks fill the last wave."""
    spans = schedule.num_spans(op.shape)
    waves = spans * op.shape.sequences * op.shape.kv_heads / num_attention_clusters(gpu, schedule.cluster)
    return [
        math.log2(spans),
        math.log2(math.ceil(waves) / waves),
        0.5 * schedule.contiguous,
        0.5 * schedule.speculative,
        0.5 * schedule.by_length,
        schedule.next_percent / 100,
        0.5 * schedule.next_early,
    ]
