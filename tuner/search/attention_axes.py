"""The axes of an attention's schedule: as an Optuna trial's parameters, and as numbers that a model can compare."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from tuner.core.plan.attention import num_attention_clusters
from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.attention import AttentionEngine, AttentionSchedule

_FLAGS = ("contiguous", "speculative", "by_length", "next_early")
_FIELDS = tuple(field.name for field in fields(AttentionSchedule))


def attention_distributions(index: int) -> dict[str, BaseDistribution]:
    """The parameters of attention `index`; wide enough for every schedule, since legality is the pool's business."""
    return {_name(field, index): _distribution(field) for field in _FIELDS}


def _distribution(field: str) -> BaseDistribution:
    if field == "engine":
        return CategoricalDistribution(list(map(str, AttentionEngine)))
    return CategoricalDistribution([False, True]) if field in _FLAGS else IntDistribution(0, 2**31)


def attention_params(schedule: AttentionSchedule, index: int) -> dict[str, Any]:
    """A schedule as a trial's parameters; `attentions_from_params` is its inverse."""
    values = {field: getattr(schedule, field) for field in _FIELDS} | {"engine": str(schedule.engine)}
    return {_name(field, index): values[field] for field in _FIELDS}


def attentions_from_params(params: dict[str, Any]) -> tuple[AttentionSchedule, ...]:
    """Inverse of `attention_params`, of all attentions."""
    indices = range(sum(name.startswith(_name(_FIELDS[0], "")) for name in params))
    return tuple(
        AttentionSchedule(
            **{field: params[_name(field, index)] for field in _FIELDS}
            | {"engine": AttentionEngine(params[_name("engine", index)])}
        )
        for index in indices
    )


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


def _name(field: str, index: object) -> str:
    return f"attention_{field}_{index}"
