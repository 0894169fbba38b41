"""Results of one attention, adapted to another: the same number of spans, rings as deep as possible."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from tuner.core.space.joint import AroundOp
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.rules import refuse
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.ops.attention.shapes.form import AttentionForm
from tuner.ops.attention.space.offered import with_ring

#: Distance added if new tokens, lengths or form differ: these change what a task reads more than how it is read.
OPTION = 0.1


def attention_distance(ops: Sequence[AttentionOp], others: Sequence[AttentionOp]) -> float:
    """How far apart two workloads' attentions are; 0 if they are the same. A factor of two in the number of sequences
    is a distance of 1, and so is a factor of two in the context. Infinity if a kernel of one does not support the
    other."""
    if len(ops) != len(others):
        return math.inf
    away = 0.0
    for op, other in zip(ops, others, strict=True):
        mine, its = op.shape, other.shape
        if (mine.head_dim, mine.columns > 8) != (its.head_dim, its.columns > 8):
            return math.inf
        sizes = [(getattr(mine, name), getattr(its, name)) for name in ("sequences", "kv_heads", "max_length")]
        away += sum(abs(math.log2(size / its_size)) for size, its_size in sizes)
        timed = [(one.lengths, one.timed_length) for one in (op, other)]
        others_differ = (mine.columns != its.columns, timed[0] != timed[1], *_differences(op.form, other.form))
        away += OPTION * sum(others_differ)
    return away


def _differences(one: AttentionForm, other: AttentionForm) -> tuple[bool, ...]:
    pages = [None if form.paged is None else form.paged.page_tokens for form in (one, other)]
    return pages[0] != pages[1], one.window != other.window, one.soft_cap != other.soft_cap


def adapt_attention(space: AroundOp, found: AttentionSchedule, before: AttentionOp) -> AttentionSchedule | None:
    """The schedule adapted to the space's attention; None if nothing similar is legal."""
    for one in _forms(space, found, before):
        fitted = with_ring(space.op, space.gpu, one)
        if fitted and refuse(space.workload, space.gpu, space.op, fitted) is None:
            return fitted
    return None


def _forms(space: AroundOp, found: AttentionSchedule, before: AttentionOp) -> Iterator[AttentionSchedule]:
    """The schedule itself, then with as many spans in ever smaller tiles, with and without options that may be illegal
    there.
    """
    yield found
    speculative = found.speculative and space.op.form.knows_tokens_early
    spans, percent = found.num_spans(before.shape), found.next_percent if space.workload.tile_ops else 0
    tiles = [tile for tile in (128, 64, 32, 16) if tile <= found.tile_tokens]
    orders = ((found.contiguous, found.by_length), (False, found.by_length), (False, False))
    for tile, (contiguous, by_length), parts in product(tiles, orders, (found.parts_at_once, 16)):
        share = found.cluster * tile
        yield replace(
            found,
            tile_tokens=tile,
            span_tokens=-(-space.op.shape.max_length // (spans * share)) * share,
            contiguous=contiguous,
            speculative=speculative,
            by_length=by_length,
            parts_at_once=parts,
            next_percent=percent,
            next_early=found.next_early and percent > 0,
        )
