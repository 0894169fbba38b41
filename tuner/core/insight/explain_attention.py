"""Of an attention: what bounds it, how its tasks fill the GPU at the lengths that are timed, what a launch takes."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.core.model.attention import attention_us, loads_of
from tuner.core.model.bounds import dram_us, tensor_us
from tuner.core.model.forecast import PROGRAMMATIC_GAIN_US
from tuner.core.model.simulate import simulate
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import attention_plans_for, plans_for
from tuner.core.schedule.attention import AttentionEngine
from tuner.core.schedule.candidate import Candidate, apart_kind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.attention_policies import policies_of_attention

_WHO_COPIES = {AttentionEngine.TMA: "the copy engine", AttentionEngine.MMA: "cp.async of two warps"}


def explain_attention(workload: Workload, gpu: Gpu, schedule: Schedule) -> Iterator[str]:
    """Sentences about the launches of a schedule: of an attention, and of a launch for each product around it.

    Raises:
        IllegalSchedule: the schedule is outside the legal space.
    """
    candidate = Candidate(plan_kind=apart_kind(len(workload.ops)), schedule=schedule)
    memory_us, product_us = dram_us(workload, gpu), tensor_us(workload, gpu)
    yield (
        f"Bounds: DRAM {memory_us:.1f} us, of which keys and values "
        f"{1e6 * workload.cache_bytes / gpu.dram_bytes_per_s:.1f}; tensor cores {product_us:.1f} us."
    )
    times_us: dict[str, float] = {}
    plans = attention_plans_for(workload, gpu, candidate)
    for op, one, plan in zip(workload.launch_ops, schedule.launch_ops, plans, strict=True):
        num_bytes, num_tasks = loads_of(plan, op.timed_lengths, one.tile_tokens)
        who = "CTAs" if one.cluster == 1 else f"clusters of {one.cluster} CTAs"
        yield (
            f"Tasks: {op.name} has {len(plan.tasks)} of {one.span_tokens} tokens, of which {int(num_tasks.sum())} are "
            f"not empty at the lengths that are timed, on {plan.num_queues} {who}; the fullest reads "
            f"{num_bytes.max() / max(1.0, num_bytes.mean()):.2f} of the mean."
        )
        if names := policies_of_attention(workload, gpu, op, one):
            yield f"Policy: {op.name} is shared among CTAs as {' and '.join(names).replace('_', ' ')} would."
        tiling = one.tiling_of(op.shape)
        yield (
            f"Under way: {tiling.ring_bytes / 1024:.0f} KiB of keys and values in an SM, in {one.num_stages} stages, "
            f"brought by {_WHO_COPIES[one.engine]}; {_meeting(plan.num_spans, one.cluster)}."
        )
        times_us[op.name] = attention_us(plan, op.timed_lengths, gpu, tiling=tiling)
    for product in plans_for(workload, gpu, candidate):
        (index,) = product.graph.op_indices
        times_us[workload.tile_ops[index].name] = simulate(product).makespan_us
    parts = ", ".join(f"{op.name} {times_us[op.name]:.1f} us" for op in workload.ops)
    yield (
        f"Forecast: {parts}; {sum(times_us.values()):.1f} us plainly, and {PROGRAMMATIC_GAIN_US:.1f} us less for each "
        "launch that is programmatic."
    )


def _meeting(num_spans: int, cluster: int) -> str:
    spans = f"{num_spans} spans of a context meet in memory" if num_spans > 1 else "a context is one span"
    return spans + (", and the CTAs of a cluster in shared memory" if cluster > 1 else "")
