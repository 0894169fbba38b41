"""`AttentionArgs`, packed byte by byte, independently of the code of the launcher, artifacts and packs."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tuner.core.plan.op_launches import MAP_BYTES
from tuner.core.plan.table.header import MOST_QUEUES
from tuner.core.problem.workload import Workload
from tuner.core.trial.limits import Limits
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.ops.attention.schedule import AttentionEngine, AttentionSchedule
from tuner.ops.attention.shapes.form import AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import (
    ABORT_WORD,
    NO_WEIGHTS,
    CacheMap,
    NextWeights,
    cap_numbers,
    form_numbers,
    next_weights_of,
)

#: Alignment of a parameter with tensor maps, and of one with the addresses of caches instead.
_ALIGNMENT = {AttentionEngine.TMA: 64, AttentionEngine.MMA: 8}


@dataclass(frozen=True, kw_only=True)
class AttentionBuffers:
    """Device addresses for a launch; the two caches are passed as `cache_bytes`."""

    k: bytes
    v: bytes
    q: int
    out: int
    #: One int32 per sequence.
    lengths: int
    tasks: int
    queues: int
    #: `AttentionTiling.partial_floats` for each slot and span.
    partials: int
    #: uint32 for each of `AttentionPlan.num_counters`, zero before the first launch.
    arrivals: int
    #: `TRACE_WORDS` for each CTA and for each traced task, zero before the first launch; or 0.
    trace: int
    #: `STATUS_WORDS`, zero before the first launch: the record of refused input, and of an abort.
    refused: int
    #: int32 [sequences, pages of the longest context]; 0 for a contiguous cache.
    pages: int = 0


@dataclass(frozen=True, kw_only=True)
class WeightsAt(NextWeights):
    """The prefetched part of weights, and the address of the weights."""

    address: int


def weights_at(workload: Workload, index: int, schedule: AttentionSchedule, address: int) -> WeightsAt:
    """The part of the next op's weights that an attention launch prefetches; `address` is where the weights start."""
    asked = next_weights_of(workload, index, schedule)
    return WeightsAt(address=address if asked.taken_bytes else 0, **vars(asked))


def cache_bytes(
    cache: CacheMap, engine: AttentionEngine, address: int, encode: Callable[[CacheMap, int], bytes]
) -> bytes:
    """The parameter's field for a cache at `address`: a tensor map as the driver encodes it, or the address."""
    return encode(cache, address) if engine is AttentionEngine.TMA else struct.pack("<Q", address)


def _pack_form(op: DecodeAttention, form: AttentionForm) -> bytes:
    return struct.pack("<7i2f", *form_numbers(op, form).values(), *cap_numbers(op, form).values())


def pack_attention_args(
    plan: AttentionPlan,
    buffers: AttentionBuffers,
    *,
    speculative: bool,
    next_weights: WeightsAt | None = None,
    spin_limit_cycles: int = Limits.spin_limit_cycles,
) -> bytes:
    """The kernel's parameter. `speculative`: the first tiles are requested before the length of their sequence is
    known."""
    op, form = plan.op, plan.form
    addresses = (buffers.q, buffers.out, buffers.lengths, buffers.tasks, buffers.queues)
    args = struct.pack("<8Q", *addresses, buffers.partials, buffers.arrivals, buffers.trace)
    args += struct.pack("<3Q", buffers.pages, buffers.refused, buffers.refused + 4 * ABORT_WORD)
    args += struct.pack("<q", spin_limit_cycles)
    behind = next_weights or WeightsAt(address=0, **vars(NO_WEIGHTS))
    args += struct.pack("<Q4i", behind.address, behind.num_rows, behind.row_bytes, behind.taken_bytes, behind.early)
    args += struct.pack("<4i", op.kv_heads, op.query_heads, op.new_tokens, plan.num_blocks)
    args += struct.pack("<3iI", op.max_length, plan.span_tokens, plan.num_spans, plan.arrivals_per_launch)
    args += struct.pack("<fi", op.score_scale * math.log2(math.e), speculative) + _pack_form(op, form)
    args += struct.pack("<3i", plan.num_assigned, plan.num_queues, op.sequences)
    args += plan.first_tasks.tobytes() + bytes(8 * (MOST_QUEUES - plan.num_queues))
    args = buffers.k + buffers.v + args
    engine = AttentionEngine.TMA if len(buffers.k) == MAP_BYTES else AttentionEngine.MMA
    return args + bytes(-len(args) % _ALIGNMENT[engine])
