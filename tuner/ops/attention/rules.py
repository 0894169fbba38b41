"""When a schedule of decode attention is legal, and what a CTA of it takes."""

from __future__ import annotations

from tuner.core.legal.attention import attention_problem as refuse
from tuner.core.legal.attention import num_math_registers, num_summing_registers
from tuner.core.problem.resources import Resources
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.schedule import AttentionSchedule

__all__ = ["refuse", "resources_of"]


def resources_of(op: AttentionOp, schedule: AttentionSchedule) -> Resources:
    """By its tiling; registers as far as is known before it is compiled."""
    tiling = schedule.tiling_of(op.shape)
    return Resources(
        num_threads=tiling.num_threads,
        smem_bytes=tiling.smem_bytes,
        registers_per_thread=max(num_math_registers(tiling), num_summing_registers(tiling)),
        cluster_size=schedule.cluster,
    )
