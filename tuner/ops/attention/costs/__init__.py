"""Time models of decode attention: for our kernel from its plan, for a vendor's library from its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.core.model.launch_ops import LaunchTimeline, TimedTask
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.ops.attention.costs.timeline import attention_timeline, attention_us
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.ops.attention.stamps import tile_of

#: Time that a launch saves if the launch before it has brought its weights into the L2. A guess: half of the time that
#: a launch takes to start.
NEXT_WEIGHTS_GAIN_US = 1.0
#: Share of the DRAM's data-sheet rate that a library reaches on keys and values.
LIBRARY_EFFICIENCY = 0.9
#: Time of a library's kernel in addition to its bytes.
LIBRARY_LAUNCH_US = 4.6
#: If there are fewer tasks than this share of the SMs, the library splits the tokens and adds up the parts.
LIBRARY_UNSPLIT_SHARE = 0.8
LIBRARY_SPLIT_US = 3.1


def launch_us(op: AttentionOp, schedule: AttentionSchedule, plan: AttentionPlan, gpu: Gpu) -> float:
    """The time at the timed lengths, minus what the next launch saves because this one requests its weights early."""
    alone_us = attention_us(plan, op.timed_lengths, gpu, tiling=schedule.tiling_of(op.shape))
    return alone_us - NEXT_WEIGHTS_GAIN_US * schedule.next_percent / 100


def timeline(op: AttentionOp, schedule: AttentionSchedule, plan: AttentionPlan, gpu: Gpu) -> LaunchTimeline:
    """The timeline at the timed lengths; a cluster's CTAs share a task."""
    rows = attention_timeline(plan, op.timed_lengths, gpu, tiling=schedule.tiling_of(op.shape))
    tasks: list[TimedTask] = []
    for row in rows:
        tile_m, tile_n = tile_of(plan, *np.array(row.task, dtype=np.int64))
        for cta in range(row.queue * plan.cluster, (row.queue + 1) * plan.cluster):
            tasks.append(TimedTask(cta=cta, tile=(int(tile_m), int(tile_n)), times_us=row.times_us))
    return LaunchTimeline(num_ctas=plan.num_queues * plan.cluster, tasks=tuple(tasks))


def library_us(ops: Sequence[AttentionOp], workload: Workload, gpu: Gpu) -> float:
    """Time of flash decoding over whole caches, masked if lengths differ. A task is a KV head of a sequence."""
    return sum(_library_us(op, gpu) for op in ops)


def _library_us(op: AttentionOp, gpu: Gpu) -> float:
    shape = op.shape
    num_bytes = shape.cache_bytes(shape.sequences * (op.timed_length or shape.max_length))
    is_split = shape.sequences * shape.kv_heads < LIBRARY_UNSPLIT_SHARE * gpu.num_sms
    read_us = 1e6 * num_bytes / (gpu.dram_bytes_per_s * LIBRARY_EFFICIENCY)
    return LIBRARY_LAUNCH_US + read_us + (LIBRARY_SPLIT_US if is_split else 0.0)
