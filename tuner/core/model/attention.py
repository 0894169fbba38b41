"""What a launch of decode attention will take at given lengths: bytes at a shared rate, and what no bandwidth hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

Figures = np.ndarray[tuple[int], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionTimeline:
    """What happens when in one launch, by the rates of the GPU, microseconds."""

    plan: AttentionPlan
    lengths: tuple[int, ...]
    tile_tokens: int
    #: From the begin of a launch in a graph to a CTA's.
    launch_us: float
    #: From there to its first bytes.
    first_bytes_us: float
    #: Of each cluster, from these to its last product's bytes.
    reading_us: Figures
    #: A task's end.
    task_us: float
    #: The meeting of a cluster's CTAs, and that of spans where there are several.
    merged_us: float

    @property
    def makespan_us(self) -> float:
        """From the begin of a launch in a graph to its last store."""
        _, num_tasks = loads_of(self.plan, self.lengths, self.tile_tokens)
        ends = self.reading_us + num_tasks * self.task_us
        return float(self.launch_us + self.first_bytes_us + ends.max() + self.merged_us)

    def rows(self) -> list[tuple[int, int, tuple[float, float, float, float, float]]]:
        """Of each task that runs, and each CTA of its cluster: the CTA, the task's place in the table of
        `AttentionPlan.run_at`, and when it was taken, ready, had its first bytes and its last product, and was stored.
        A CTA's tasks share its time by their bytes."""
        found, plan = [], self.plan
        queue_of, num_bytes, is_live = _task_loads(plan, self.lengths, self.tile_tokens)
        totals = np.maximum(np.bincount(queue_of, num_bytes, plan.num_queues), 1.0)
        us = self.reading_us[queue_of] * num_bytes / totals[queue_of]
        for queue, places in enumerate(plan.running_at(self.lengths)):
            now = self.launch_us
            for number, place in enumerate(places):
                loaded = now + (self.first_bytes_us if number == 0 else 0.0)
                computed = loaded + float(us[place])
                stored = computed + self.task_us * int(is_live[place])
                stored += self.merged_us if number == len(places) - 1 else 0.0
                for rank in range(plan.cluster):
                    found.append((queue * plan.cluster + rank, place, (now, now, loaded, computed, stored)))
                now = stored
        return found


def attention_us(
    plan: AttentionPlan, lengths: Sequence[int], gpu: Gpu, *, tiling: AttentionTiling, rates: Rates | None = None
) -> float:
    """From the begin of a launch in a graph to its last store, microseconds, with a cold cache."""
    return attention_timeline(plan, lengths, gpu, tiling=tiling, rates=rates).makespan_us


def attention_timeline(
    plan: AttentionPlan, lengths: Sequence[int], gpu: Gpu, *, tiling: AttentionTiling, rates: Rates | None = None
) -> AttentionTimeline:
    """The same, CTA by CTA.

    All CTAs that still read share the DRAM evenly, each up to its SM's port, and up to what its ring has under way
    (Little's law). What comes on top is the begin, the first bytes' way, a task's own end for each, the meeting of a
    cluster's CTAs, and that of spans where there are several.
    """
    chosen = rates or rates_of(gpu)
    per_us = gpu.dram_bytes_per_s * chosen.dram_share / 1e6
    port_per_us = _PORT_BYTES * chosen.l2_share * gpu.clock_mhz
    ring_per_us = tiling.ring_bytes / (chosen.dram_latency_us + chosen.mma.step_us * tiling.num_stages)
    port_per_us = min(port_per_us, ring_per_us)
    num_bytes, _ = loads_of(plan, lengths, tiling.tile_tokens)
    merged = 0.0
    if plan.cluster > 1:
        merged += _CLUSTER_US
    if (most_live := max(len(plan.live_spans(length)) for length in lengths)) > 1:
        rows = most_live * plan.columns * (plan.op.head_dim + 2) * _FLOAT_BYTES / plan.cluster
        merged += chosen.mma.arrival_us + chosen.l2_latency_us + chosen.mma.sum_us_per_kib * rows / 1024
    return AttentionTimeline(
        plan=plan,
        lengths=tuple(lengths),
        tile_tokens=tiling.tile_tokens,
        launch_us=chosen.launch_us,
        first_bytes_us=chosen.dram_latency_us,
        reading_us=_ends_us(num_bytes / plan.cluster, per_us / plan.cluster, port_per_us),
        task_us=chosen.mma.task_us,
        merged_us=merged,
    )


def loads_of(plan: AttentionPlan, lengths: Sequence[int], tile_tokens: int) -> tuple[Figures, Figures]:
    """Of each cluster: bytes of the cache that it requests, and tasks that are not empty."""
    queue, num_bytes, is_live = _task_loads(plan, lengths, tile_tokens)
    return (
        np.bincount(queue, num_bytes, plan.num_queues).astype(np.float64),
        np.bincount(queue, is_live, plan.num_queues).astype(np.float64),
    )


def _task_loads(plan: AttentionPlan, lengths: Sequence[int], tile_tokens: int) -> tuple[Ints, Ints, Ints]:
    """Of each task of the table: its queue, bytes of the cache, and 1 where it is not empty."""
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
    return queue, (tokens * of_token).astype(np.int64), is_live.astype(np.int64)


def _ends_us(num_bytes: Figures, per_us: float, port_per_us: float) -> Figures:
    """When each CTA has its bytes."""
    order = np.argsort(num_bytes, kind="stable")
    ends = np.zeros(len(num_bytes))
    now, before = 0.0, 0.0
    for place, cta in enumerate(order):
        rate = min(port_per_us, per_us / (len(order) - place))
        now += (num_bytes[cta] - before) / rate
        before, ends[cta] = num_bytes[cta], now
    return ends
