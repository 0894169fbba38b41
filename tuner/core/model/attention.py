"""What a launch of decode attention will take at given lengths: bytes at a shared rate, and what no bandwidth hides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.core.model.rates import Rates, rates_of
from tuner.core.plan.attention import AttentionPlan
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.attention import AttentionTiling

#: Bytes that one SM takes from the L2 in a clock, when it is alone.
_PORT_BYTES = 64
_FLOAT_BYTES = 4
#: From a CTA's last item sent to the last one received. A guess: an item's way is as long as one to the L2.
_CLUSTER_US = 0.5


def attention_us(
    plan: AttentionPlan, lengths: Sequence[int], gpu: Gpu, *, tiling: AttentionTiling, rates: Rates | None = None
) -> float:
    """From the begin of a launch in a graph to its last store, microseconds, with a cold cache.

    All CTAs that still read share the DRAM evenly, each up to its SM's port, and up to what its ring has under way
    (Little's law). What comes on top is the begin, the first bytes' way, a task's own end for each, the meeting of a
    cluster's CTAs, and that of spans where there are several.
    """
    chosen = rates or rates_of(gpu)
    per_us = gpu.dram_bytes_per_s * chosen.dram_share / 1e6
    port_per_us = _PORT_BYTES * chosen.l2_share * gpu.clock_mhz
    ring_per_us = tiling.ring_bytes / (chosen.dram_latency_us + chosen.mma.step_us * tiling.num_stages)
    port_per_us = min(port_per_us, ring_per_us)
    num_bytes, num_tasks = loads_of(plan, lengths, tiling.tile_tokens)
    ends = _ends_us(num_bytes / plan.cluster, per_us / plan.cluster, port_per_us) + num_tasks * chosen.mma.task_us
    merged = 0.0
    if plan.cluster > 1:
        merged += _CLUSTER_US
    if (most_live := max(len(plan.live_spans(length)) for length in lengths)) > 1:
        rows = most_live * plan.columns * (plan.op.head_dim + 2) * _FLOAT_BYTES / plan.cluster
        merged += chosen.mma.arrival_us + chosen.l2_latency_us + chosen.mma.sum_us_per_kib * rows / 1024
    return float(chosen.launch_us + chosen.dram_latency_us + ends.max() + merged)


def loads_of(
    plan: AttentionPlan, lengths: Sequence[int], tile_tokens: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Of each cluster: bytes of the cache that it requests, and tasks that are not empty."""
    op, (tasks, queues) = plan.op, plan.run_at(lengths)
    sequence, span = tasks[:, 0] >> 16, tasks[:, 1] & 0xFFFFFF
    begin = span * plan.span_tokens
    left = np.clip(np.asarray(lengths)[sequence] - begin, 0, plan.span_tokens)
    seen = np.array([plan.form.first_seen(op, length) for length in lengths])[sequence]
    skipped = np.clip(seen - begin, 0, plan.span_tokens) // tile_tokens
    tokens = np.maximum(-(-left // tile_tokens) - skipped, 0) * tile_tokens
    live = np.array([(spans.start, spans.stop) for spans in map(plan.live_spans, lengths)])[sequence]
    of_token = 2 * op.head_dim * op.dtype.size_bytes
    queue = np.repeat(np.arange(plan.num_queues), np.diff(queues))
    is_live = (live[:, 0] <= span) & (span < live[:, 1])
    return (
        np.bincount(queue, tokens * of_token, plan.num_queues).astype(np.float64),
        np.bincount(queue, is_live, plan.num_queues).astype(np.float64),
    )


def _ends_us(
    num_bytes: np.ndarray[tuple[int], np.dtype[np.float64]], per_us: float, port_per_us: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When each CTA has its bytes."""
    order = np.argsort(num_bytes, kind="stable")
    ends = np.zeros(len(num_bytes))
    now, before = 0.0, 0.0
    for place, cta in enumerate(order):
        rate = min(port_per_us, per_us / (len(order) - place))
        now += (num_bytes[cta] - before) / rate
        before, ends[cta] = num_bytes[cta], now
    return ends
