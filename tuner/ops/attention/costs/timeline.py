"""A forecast of a decode attention launch at given lengths: bytes at a shared rate, and latencies that no bandwidth
hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.core.model.rates import Rates, rates_of
from tuner.core.problem.gpu import Gpu
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.ops.attention.schedule import AttentionEngine, AttentionTiling

#: Bytes per clock that one SM receives from the L2 when no other SM reads.
_PORT_BYTES = 64
_FLOAT_BYTES = 4
#: Time between two copies that one thread requests: boxes of 4 KB arrive at 71 GB/s (docs/findings/README.md).
_COPY_US = 0.058
#: Time between two tiles, of keys or of values, that a warp requests from a paged cache; fitted like `_TASK_US`.
_PAGED_TILE_US = 0.17
#: Time between two `cp.async` of a warp, 16 bytes per lane; and the additional time per tile of keys or values: its
#: stage, its addresses, an arrival of each lane (docs/findings/README.md).
_WARP_COPY_BYTES, _WARP_COPY_CLOCKS, _WARP_TILE_CLOCKS = 512, 18, 250
#: Time until a CTA has its first task; time per task besides its bytes (queries, sums over the last tile, the exchange
#: in a cluster); and the additional time per task if the multiplying warps also finish it. Fitted to single
#: attentions and to layers of 32 sequences on an H200 (docs/simulator.md).
_BEGIN_US, _TASK_US, _ENDED_ALONE_US = 2.25, 0.92, 0.26


@dataclass(frozen=True, kw_only=True)
class AttentionTimes:
    """The times of a cluster's task."""

    queue: int
    #: sequence << 16 | KV head, block of columns << 24 | span.
    task: tuple[int, int]
    #: Microseconds since the launch began: when the task was taken, its first bytes had arrived, everything was
    #: multiplied, and the result was stored.
    times_us: tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class _Times:
    #: Time until the first bytes arrive.
    first: float
    #: For each cluster, the time from then until it has multiplied its last bytes.
    ends: np.ndarray[tuple[int], np.dtype[np.float64]]
    #: Time after the last bytes.
    merged: float


def attention_us(
    plan: AttentionPlan, lengths: Sequence[int], gpu: Gpu, *, tiling: AttentionTiling, rates: Rates | None = None
) -> float:
    """Microseconds from the start of a launch in a graph to its last store, with a cold cache.

    All CTAs that still read share the DRAM evenly. Each is limited by its SM's port, by the bytes in flight in its ring
    (Little's law), and by the rate at which one thread requests pages, or one warp loads without the copy engine. Added
    to this are the start of the launch, the latency of the first bytes, a time for each task, and the exchange between
    spans if there are several.
    """
    times = _times(plan, lengths, tiling, rates or rates_of(gpu), gpu)
    return float(times.first + times.ends.max() + times.merged)


def attention_timeline(
    plan: AttentionPlan, lengths: Sequence[int], gpu: Gpu, *, tiling: AttentionTiling
) -> list[AttentionTimes]:
    """The tasks that are not empty, queue by queue, with the times of `attention_us`: a queue's time is distributed
    over its tasks in proportion to their bytes."""
    times = _times(plan, lengths, tiling, rates_of(gpu), gpu)
    tasks, queues = plan.run_at(lengths)
    tokens, is_live = _tokens_of(plan, lengths, tiling.tile_tokens)
    found = []
    for queue in range(plan.num_queues):
        own = np.arange(queues[queue], queues[queue + 1])
        own = own[is_live[own]]
        weights = 1 + tokens[own]  # a task without tokens also takes time
        ends = times.first + times.ends[queue] * np.cumsum(weights) / max(1, weights.sum())
        begin = _BEGIN_US
        for place, end in zip(own.tolist(), ends.tolist(), strict=True):
            head, span = tasks[place].tolist()
            loaded = min(end, max(begin, times.first))
            found.append(
                AttentionTimes(queue=queue, task=(head, span), times_us=(begin, loaded, end, end + times.merged))
            )
            begin = end
    return found


def _times(plan: AttentionPlan, lengths: Sequence[int], tiling: AttentionTiling, chosen: Rates, gpu: Gpu) -> _Times:
    per_us = gpu.dram_bytes_per_s * chosen.dram_share / 1e6
    port_per_us = _PORT_BYTES * chosen.l2_share * gpu.clock_mhz
    ring_per_us = tiling.ring_bytes / (chosen.dram_latency_us + chosen.mma.step_us * tiling.num_stages)
    port_per_us = min(port_per_us, ring_per_us)
    if tiling.engine is AttentionEngine.MMA:
        port_per_us = min(port_per_us, _warp_bytes_per_us(tiling, gpu))
    elif paged := plan.form.paged:
        line_bytes = tiling.head_dim * plan.op.dtype.size_bytes
        box_bytes = min(tiling.tile_tokens, paged.page_tokens) * line_bytes
        port_per_us = min(port_per_us, box_bytes / _COPY_US, tiling.tile_tokens * line_bytes / _PAGED_TILE_US)
    num_bytes, num_tasks = loads_of(plan, lengths, tiling.tile_tokens)
    task_us = _TASK_US if tiling.finish_warps else _TASK_US + _ENDED_ALONE_US
    ends = _ends_us(num_bytes / plan.cluster, per_us / plan.cluster, port_per_us) + num_tasks * task_us
    merged = 0.0
    if (most_live := max(len(plan.live_spans(length)) for length in lengths)) > 1:
        rows = most_live * plan.columns * (plan.op.head_dim + 2) * _FLOAT_BYTES / plan.cluster
        merged = chosen.mma.arrival_us + chosen.l2_latency_us + chosen.mma.sum_us_per_kib * rows / 1024
    return _Times(first=_BEGIN_US + chosen.dram_latency_us, ends=ends, merged=merged)


def _warp_bytes_per_us(tiling: AttentionTiling, gpu: Gpu) -> float:
    """The rate of two warps, one of which copies keys, tile after tile, if nothing else limits them."""
    of_keys = tiling.ring_bytes / tiling.num_stages / 2
    return 2 * of_keys * gpu.clock_mhz / (_WARP_TILE_CLOCKS + _WARP_COPY_CLOCKS * of_keys / _WARP_COPY_BYTES)


def loads_of(
    plan: AttentionPlan, lengths: Sequence[int], tile_tokens: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """For each cluster, the bytes of the cache that it requests, and the number of its tasks that are not empty."""
    tokens, is_live = _tokens_of(plan, lengths, tile_tokens)
    of_token = 2 * plan.op.head_dim * plan.op.dtype.size_bytes
    queue = np.repeat(np.arange(plan.num_queues), np.diff(plan.run_at(lengths)[1]))
    return (
        np.bincount(queue, tokens * of_token, plan.num_queues).astype(np.float64),
        np.bincount(queue, is_live, plan.num_queues).astype(np.float64),
    )


def _tokens_of(
    plan: AttentionPlan, lengths: Sequence[int], tile_tokens: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """For each task at these lengths, the tokens that it requests, and whether it is run."""
    op, tasks = plan.op, plan.run_at(lengths)[0]
    sequence, span = tasks[:, 0] >> 16, tasks[:, 1] & 0xFFFFFF
    begin = span * plan.span_tokens
    left = np.clip(np.asarray(lengths)[sequence] - begin, 0, plan.span_tokens)
    seen = np.array([plan.form.first_seen(op, length) for length in lengths])[sequence]
    skipped = np.clip(seen - begin, 0, plan.span_tokens) // tile_tokens
    tokens = np.maximum(-(-left // tile_tokens) - skipped, 0) * tile_tokens
    live = np.array([(spans.start, spans.stop) for spans in map(plan.live_spans, lengths)])[sequence]
    return tokens, (live[:, 0] <= span) & (span < live[:, 1])


def _ends_us(
    num_bytes: np.ndarray[tuple[int], np.dtype[np.float64]], per_us: float, port_per_us: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When each CTA has received its bytes."""
    order = np.argsort(num_bytes, kind="stable")
    ends = np.zeros(len(num_bytes))
    now, before = 0.0, 0.0
    for place, cta in enumerate(order):
        rate = min(port_per_us, per_us / (len(order) - place))
        now += (num_bytes[cta] - before) / rate
        before, ends[cta] = num_bytes[cta], now
    return ends
