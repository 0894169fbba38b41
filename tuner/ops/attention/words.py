"""Texts about decode attention: what a schedule does, why it is fast or slow, and what it is measured against."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.ops.attention.costs.timeline import loads_of
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.ops.attention.schedule import AttentionEngine, AttentionSchedule
from tuner.ops.attention.search.policies import policies_of_attention

_WHO_COPIES = {AttentionEngine.TMA: "the copy engine", AttentionEngine.MMA: "cp.async of two warps"}


def schedule_words(op: AttentionOp, one: AttentionSchedule, workload: Workload) -> list[str]:
    """Sentences about a schedule's tasks, its kernel, and its prefetches for the next launch."""
    spans, shared = one.num_spans(op.shape), f", shared by a cluster of {one.cluster} CTAs" if one.cluster > 1 else ""
    number = "the whole context at once" if spans == 1 else f"{spans} of the longest context"
    order = "neighbours" if one.contiguous else "tasks in turns"
    order = "only the part that the lengths leave" if one.by_length else order
    finish = f"{one.finish_warps} that finish tasks" if one.finish_warps else "which also finish tasks"
    early = ", the first tiles before a length is known" if one.speculative else ""
    words = [
        f"Attention {op.name}: spans of {one.span_tokens} tokens, {number}{shared}; each queue has {order}.",
        f"Its kernel: tiles of {one.tile_tokens} tokens, {one.num_stages} of keys and of values in the ring{early}, "
        f"loaded by {'the copy engine' if one.engine is AttentionEngine.TMA else 'cp.async'}; {one.math_warps} warps "
        f"that multiply, {finish}.",
    ]
    reader = workload.reader_of(op)
    if reader is not None and one.next_percent:
        share = "all" if one.next_percent == 100 else f"{one.next_percent} %"
        when = "before the previous launch has ended" if one.next_early else "when all of its inputs are ready"
        words.append(f"It prefetches {share} of the weights of {reader.name} into the L2, {when}.")
    return words


def explain(
    op: AttentionOp, schedule: AttentionSchedule, plan: AttentionPlan, workload: Workload, gpu: Gpu
) -> Iterator[str]:
    """How the launch's tasks fill the GPU at the timed lengths, which CTAs share them, and what an SM has in flight."""
    num_bytes, num_tasks = loads_of(plan, op.timed_lengths, schedule.tile_tokens)
    who = "CTAs" if schedule.cluster == 1 else f"clusters of {schedule.cluster} CTAs"
    yield (
        f"Tasks: {op.name} has {len(plan.tasks)} of {schedule.span_tokens} tokens, of which {int(num_tasks.sum())} "
        f"are not empty at the timed lengths, on {plan.num_queues} {who}; the fullest reads "
        f"{num_bytes.max() / max(1.0, num_bytes.mean()):.2f} times the mean."
    )
    if names := policies_of_attention(workload, gpu, op, schedule):
        yield f"Policy: {op.name} is distributed among CTAs as {' and '.join(names).replace('_', ' ')} would do it."
    ring_bytes = schedule.tiling_of(op.shape).ring_bytes
    yield (
        f"In flight: {ring_bytes / 1024:.0f} KiB of keys and values per SM, in {schedule.num_stages} stages, loaded "
        f"by {_WHO_COPIES[schedule.engine]}; {_meeting(plan.num_spans, schedule.cluster)}."
    )


def _meeting(num_spans: int, cluster: int) -> str:
    spans = f"{num_spans} spans of a context are combined in memory" if num_spans > 1 else "a context is one span"
    return spans + (", and the CTAs of a cluster in shared memory" if cluster > 1 else "")


def library_of(recipe: LibraryRecipe | None) -> str:
    """The library that was timed: PyTorch's attention, or only cuBLASLt if PyTorch has no kernel for the op."""
    is_batched = recipe is not None and "scaled_dot_product_attention" not in recipe.launch_ops
    return "cuBLASLt" if is_batched else "PyTorch's attention"


def order_of_sums(op: AttentionOp, one: AttentionSchedule) -> str:
    """The order in which a row's products are added up."""
    tiles = f"spans of {one.span_tokens} tokens in tiles of {one.tile_tokens}"
    return f"{op.name}: {tiles}, {one.math_warps} warps of {one.cluster} CTAs"
