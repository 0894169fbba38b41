"""The timestamps that a launch of decode attention writes for its tasks, and the tasks' positions in its chart.

The array is [num_ctas, 1 + tasks of the longest queue, 7], with 0 where nothing was written; see
`AttentionEvent` and `CtaEvent` in args_attention.cuh.
"""

from __future__ import annotations

import numpy as np

from tuner.core.insight.traces.tracing import Ints, Stamped, Stamps
from tuner.ops.attention.plans.tasks import AttentionPlan

#: 64-bit words per row of stamps; `kTraceWords`.
TRACE_WORDS = 7


def shape_of(plan: AttentionPlan, traced_tasks: int) -> tuple[int, ...]:
    """Shape of the array: each CTA has a row for itself, then one row per task."""
    return plan.num_ctas, 1 + traced_tasks, TRACE_WORDS


def tile_of(plan: AttentionPlan, sequence_head: Ints, block_span: Ints) -> tuple[Ints, Ints]:
    """The position of an attention's tasks in its chart: the sequence, and one number for KV head, block of columns
    and span."""
    block, span = block_span >> 24, block_span & 0xFFFFFF
    return sequence_head >> 16, ((sequence_head & 0xFFFF) * plan.num_blocks + block) * plan.num_spans + span


def stamped_of(launch: int, op: int, plan: AttentionPlan, words: Stamps) -> Stamped:
    """The stamps of an attention's launch: a task is a CTA's part of a span. A task is regarded as stored when its CTA
    has finished all of its work on the task.

    Raises:
        ValueError: a CTA with a task recorded no stamps.
    """
    found = words[: plan.num_queues * plan.cluster]  # the CTAs after these only prefetch weights
    missing = np.flatnonzero((found[:, 0, :4] == 0).any(axis=1))
    if missing.size:
        raise ValueError(f"CTA {missing[0]} of launch {launch} recorded no stamps (nor did {missing.size - 1} others)")
    cta, number = np.nonzero(found[:, 1:, 0])
    of_task = found[cta, 1 + number]
    taken, first, last, merged, arrived, combined, task = of_task.T
    times = np.stack([taken, taken, first, last, np.maximum(np.maximum(merged, arrived), combined)], axis=1)
    times = np.maximum.accumulate(times, axis=1)
    tasks = np.stack([np.full_like(task, op), *tile_of(plan, task >> 32, task & 0xFFFFFFFF)], axis=1)
    rows = np.concatenate([times, cta[:, None]], axis=1)
    return Stamped(tasks=tasks, table=np.concatenate([rows, np.pad(found[:, 0, :5], ((0, 0), (0, 1)))]))
