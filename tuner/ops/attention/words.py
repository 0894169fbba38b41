"""A schedule of decode attention in words that need no glossary."""

from __future__ import annotations

from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.attention import AttentionEngine, AttentionSchedule


def schedule_words(op: AttentionOp, one: AttentionSchedule, workload: Workload) -> list[str]:
    """Sentences about its tasks, its kernel, and what it brings for the launch behind it."""
    spans, shared = one.num_spans(op.shape), f", shared by a cluster of {one.cluster} CTAs" if one.cluster > 1 else ""
    number = "the whole context at once" if spans == 1 else f"{spans} of the longest context"
    order = "neighbours" if one.contiguous else "tasks in turns"
    order = "its share of those alone that the lengths leave" if one.by_length else order
    finish = f"{one.finish_warps} that end tasks" if one.finish_warps else "which end tasks too"
    early = ", the first tiles before a length is known" if one.speculative else ""
    words = [
        f"Attention {op.name}: spans of {one.span_tokens} tokens, {number}{shared}; each queue has {order}.",
        f"Its kernel: tiles of {one.tile_tokens} tokens, {one.num_stages} of keys and of values in the ring{early}, "
        f"brought by {'the copy engine' if one.engine is AttentionEngine.TMA else 'cp.async'}; "
        f"{one.math_warps} warps that multiply, {finish}.",
    ]
    reader = workload.reader_of(op)
    if reader is not None and one.next_percent:
        share = "all" if one.next_percent == 100 else f"{one.next_percent} %"
        when = "before the launch before it has ended" if one.next_early else "when all that it reads is there"
        words.append(f"It brings {share} of the weights of {reader.name} into the L2, {when}.")
    return words
