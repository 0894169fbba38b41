"""Workloads with an attention, and schedules of them."""

from __future__ import annotations

from typing import Any

from tests.support.cases import H200
from tests.support.presets import attention_pair
from tests.support.spaces import any_space_of
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.levels import NO_ORDERING, NO_TILING
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import JointSpace
from tuner.ops.attention.op import Lengths
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.ops.attention.shapes.form import form_for
from tuner.ops.attention.shapes.shape import DecodeAttention

SHAPE = {"sequences": 4, "kv_heads": 2, "query_heads": 4, "head_dim": 64, "max_length": 700}
PLAIN: dict[str, Any] = {
    "tile_tokens": 64, "num_stages": 6, "math_warps": 8, "finish_warps": 4, "cluster": 1, "span_tokens": 704,
}  # fmt: skip


def attention(
    *, d_out: int | None = None, lengths: Lengths = Lengths.FULL, form: dict[str, Any] | None = None, **sizes: Any
) -> Workload:
    """An attention, alone or followed by a product of `d_out` columns; `form` is for `form_for`."""
    shape = DecodeAttention(**{"dtype": Dtype.BF16, **SHAPE, **sizes})
    return attention_pair(shape, d_out=d_out, lengths=lengths, form=form_for(shape, **(form or {})))


def alone(**fields: Any) -> Schedule:
    """A schedule of an attention without a product."""
    return Schedule.of(tiling=NO_TILING, ordering=NO_ORDERING, launch_ops=(AttentionSchedule(**{**PLAIN, **fields}),))


def space_with(workload: Workload) -> JointSpace:
    """The schedule space on an H200."""
    found = any_space_of(workload, H200)
    assert isinstance(found, JointSpace)
    return found
