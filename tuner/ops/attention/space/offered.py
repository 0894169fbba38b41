"""The schedules of one attention that a search is offered: every legal combination of promising values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.axis import near
from tuner.errors import IllegalSchedule
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import CLUSTERS, num_attention_clusters
from tuner.ops.attention.rules import (
    FINISH_WARPS,
    NEXT_PERCENTS,
    PARTS_AT_ONCE,
    engine_of,
    refuse,
    refuse_kernel,
    refuse_launch,
)
from tuner.ops.attention.schedule import MATH_WARPS, MOST_STAGES, TILE_TOKENS, AttentionEngine, AttentionSchedule

#: Numbers of spans of the longest context, in addition to those that fill the GPU.
_NUM_SPANS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
#: Warps that multiply, and warps that finish a task: values that were fastest for some shape.
_WARPS = ((8, 4), (8, 0), (4, 2), (4, 4))
#: Shares of the deepest possible ring: a shallow one leaves space for a CTA of the next launch.
_RING_SHARES = (1.0, 0.5, 0.25, 0.0)
#: Percentage of the next launch's weights that is prefetched, and whether early.
_NEXT_ASKS = ((0, False), (50, False), (100, False), (25, True), (50, True))
#: Whether a queue has neighbouring tasks, whether first tiles are requested early, and whether tasks are assigned by
#: the lengths.
_ORDERS = ((False, True, False), (False, False, False), (True, True, False), (True, False, False), (False, False, True))
#: Loads in flight at the same time in sums over spans.
_PARTS_AT_ONCE = (16, 8)


def offered_attentions(workload: Workload, gpu: Gpu, op: AttentionOp) -> Iterator[AttentionSchedule]:
    """All legal schedules of the offered values, without duplicates."""
    asks = _NEXT_ASKS if workload.reader_of(op) else _NEXT_ASKS[:1]
    engine = engine_of(gpu)
    clusters = CLUSTERS if engine is AttentionEngine.TMA else (1,)
    for cluster, tile, (warps, finish) in product(clusters, TILE_TOKENS, _WARPS):
        spans, depths = span_tokens(op, gpu, cluster, tile), ring_depths(op, gpu, cluster, tile, warps, finish)
        for span, depth, parts in product(spans, depths, _PARTS_AT_ONCE):
            kernel = AttentionSchedule(
                tile_tokens=tile,
                num_stages=depth,
                math_warps=warps,
                finish_warps=finish,
                cluster=cluster,
                parts_at_once=parts,
                span_tokens=span,
                engine=engine,
            )
            if refuse_kernel(gpu, op, kernel) is None:
                yield from _launches(workload, gpu, op, kernel, asks)


def _launches(
    workload: Workload, gpu: Gpu, op: AttentionOp, kernel: AttentionSchedule, asks: Sequence[tuple[int, bool]]
) -> Iterator[AttentionSchedule]:
    """The legal ways to launch a kernel that is legal."""
    for contiguous, speculative, by_length in _ORDERS:
        ordered = replace(kernel, contiguous=contiguous, speculative=speculative, by_length=by_length)
        if refuse_launch(workload, gpu, op, ordered) is None:
            yield ordered
            yield from (replace(ordered, next_percent=percent, next_early=early) for percent, early in asks[1:])


def span_tokens(op: AttentionOp, gpu: Gpu, cluster: int, tile: int) -> list[int]:
    """Lengths of a span: the whole context, fractions of it, and lengths that give every cluster a task."""
    shape, share = op.shape, cluster * tile
    blocks = -(-shape.columns // 16) if shape.columns > 8 else 1
    filling = max(1, num_attention_clusters(gpu, cluster) // (shape.sequences * shape.kv_heads * blocks))
    numbers = sorted({*_NUM_SPANS, filling, 2 * filling})
    fitting = (number for number in numbers if (number - 1) * share < shape.max_length)
    return list(dict.fromkeys(-(-shape.max_length // (number * share)) * share for number in fitting))


def ring_depths(op: AttentionOp, gpu: Gpu, cluster: int, tile: int, warps: int, finish: int) -> list[int]:
    """Stages of a ring, the deepest possible first: multiples of the number of teams."""
    teams, shape = warps // (tile // 16), op.shape
    if not teams:
        return []
    for depth in range(MOST_STAGES // teams * teams, 0, -teams):
        schedule = AttentionSchedule(
            tile_tokens=tile, num_stages=depth, math_warps=warps, finish_warps=finish, cluster=cluster, span_tokens=tile
        )
        if schedule.tiling_of(shape).smem_bytes <= gpu.smem_per_cta_bytes:
            shares = (max(teams, int(depth * share) // teams * teams) for share in _RING_SHARES)
            return list(dict.fromkeys(shares))
    return []


def near_attentions(workload: Workload, gpu: Gpu, op: AttentionOp, one: AttentionSchedule) -> list[AttentionSchedule]:
    """The legal schedules that differ from `one` in one axis. If the tile, the warps or the cluster change, ring and
    span change with them as far as necessary."""
    found: list[AttentionSchedule] = []
    for cluster, tile in [*((c, one.tile_tokens) for c in CLUSTERS), *((one.cluster, t) for t in TILE_TOKENS)]:
        found += _with_span_near(op, replace(one, cluster=cluster, tile_tokens=tile))
    found += [
        replace(one, math_warps=warps, finish_warps=finish) for warps, finish in product(MATH_WARPS, FINISH_WARPS)
    ]
    found += [replace(one, num_stages=stages) for stages in range(1, MOST_STAGES + 1)]
    found += [replace(one, span_tokens=span) for span in span_tokens(op, gpu, one.cluster, one.tile_tokens)]
    found += [replace(one, parts_at_once=parts) for parts in PARTS_AT_ONCE]
    found += [replace(one, contiguous=not one.contiguous), replace(one, speculative=not one.speculative)]
    found += [replace(one, by_length=not one.by_length)]
    found += [replace(one, next_percent=percent) for percent in NEXT_PERCENTS]
    found += [replace(one, next_early=not one.next_early), *near(one)]
    fitted = (fit for schedule in found if (fit := with_ring(op, gpu, schedule)) is not None)
    others = (schedule for schedule in dict.fromkeys(fitted) if schedule != one)
    return [schedule for schedule in others if refuse(workload, gpu, op, schedule) is None]


def _with_span_near(op: AttentionOp, one: AttentionSchedule) -> list[AttentionSchedule]:
    """The schedule with a span of about the same length in whole tiles of each CTA, no longer than the context."""
    share = one.cluster * one.tile_tokens
    longest = -(-op.shape.max_length // share) * share
    return [replace(one, span_tokens=min(longest, -(-one.span_tokens // share) * share))]


def with_ring(op: AttentionOp, gpu: Gpu, one: AttentionSchedule) -> AttentionSchedule | None:
    """The schedule with its number of stages, or the next smaller one that is whole and fits; None if there is none."""
    for stages in range(one.num_stages, 0, -1):
        schedule = replace(one, num_stages=stages)
        try:
            if schedule.tiling_of(op.shape).smem_bytes <= gpu.smem_per_cta_bytes:
                return schedule
        except IllegalSchedule:
            continue
    return None
