"""Rules for an attention's schedule; `tuner.core.legal.legality` has the complete definition.

Every rule returns None or a sentence. If several schedules give the same plan, only the simplest is legal; the others
are refused, and the sentence names it.
"""

from __future__ import annotations

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.resources import MAX_THREADS_PER_CTA, Resources, most_registers
from tuner.core.problem.workload import Workload
from tuner.core.schedule.axis import axes_of, values_problem
from tuner.errors import IllegalSchedule
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import num_attention_clusters
from tuner.ops.attention.schedule import (
    MOST_STAGES,
    AttentionEngine,
    AttentionSchedule,
    AttentionTiling,
)

FINISH_WARPS, PARTS_AT_ONCE, NEXT_PERCENTS = (
    axes_of(AttentionSchedule)[name].values for name in ("finish_warps", "parts_at_once", "next_percent")
)
#: Registers for addresses, scores and maxima, in addition to those for sums, queries or loads. With so many, no kernel
#: of any form spilled for sm_90a, nor did one of the mma engine for sm_80. More are needed with several teams of
#: warps, with eight warps in one team, if multiplying warps also finish tasks, and if a warp's lanes copy.
_BESIDE_ONE_TEAM, _BESIDE_TEAMS, _BESIDE_LOADS = 72, 80, 64
#: Per load, and for addresses, if multiplying warps also add up spans and so hold their sums of values meanwhile.
_PER_LOAD_BESIDE_SUMS, _BESIDE_LOADS_AND_SUMS = 6, 36
#: What the tma engine needs: bulk copies by tensor maps, clusters.
_TMA_CAPABILITY = (9, 0)


def attention_engine_problem(engine: AttentionEngine, gpu: Gpu) -> str | None:
    """Why a GPU that can run kernels in general cannot run an engine."""
    if engine is AttentionEngine.TMA and gpu.compute_capability != _TMA_CAPABILITY:
        major, minor = gpu.compute_capability
        has = f"{gpu.name} has compute capability {major}.{minor}"
        return f"{has}: the tma engine of attentions needs 9.0, use mma"
    return None


def engine_of(gpu: Gpu) -> AttentionEngine:
    """The engine that a search uses on this GPU: the one with the copy engine if the GPU can run it."""
    return AttentionEngine.TMA if attention_engine_problem(AttentionEngine.TMA, gpu) is None else AttentionEngine.MMA


def refuse(workload: Workload, gpu: Gpu, op: AttentionOp, schedule: AttentionSchedule) -> str | None:
    """Why the schedule cannot be compiled, would not fit the GPU, or is not the simplest schedule for its plan."""
    return refuse_kernel(gpu, op, schedule) or refuse_launch(workload, gpu, op, schedule)


def refuse_kernel(gpu: Gpu, op: AttentionOp, schedule: AttentionSchedule) -> str | None:
    """The part of `refuse` that depends only on the schedule's engine, ring, warps, cluster and `parts_at_once`, if all
    other axes have proposed values."""
    return (
        attention_engine_problem(schedule.engine, gpu) or _values_problem(schedule) or _fit_problem(op, schedule, gpu)
    )


def refuse_launch(workload: Workload, gpu: Gpu, op: AttentionOp, schedule: AttentionSchedule) -> str | None:
    """The rest of `refuse`."""
    return _plan_problem(op, schedule, gpu) or _next_problem(workload, op, schedule)


def resources_of(op: AttentionOp, schedule: AttentionSchedule) -> Resources:
    """The resources of the schedule's tiling; registers as far as they are known before compilation."""
    tiling = schedule.tiling_of(op.shape)
    return Resources(
        num_threads=tiling.num_threads,
        smem_bytes=tiling.smem_bytes,
        registers_per_thread=max(num_math_registers(tiling), num_summing_registers(tiling)),
        cluster_size=schedule.cluster,
    )


def _values_problem(schedule: AttentionSchedule) -> str | None:
    if problem := values_problem(schedule):
        return problem
    if schedule.engine is AttentionEngine.MMA and schedule.cluster > 1:
        return f"a cluster of {schedule.cluster} CTAs: the mma engine of attentions has no clusters, use cluster 1"
    if not 1 <= schedule.num_stages <= MOST_STAGES:
        return f"{schedule.num_stages} stages: use 1 to {MOST_STAGES}, the number of barriers"
    return None


def _fit_problem(op: AttentionOp, schedule: AttentionSchedule, gpu: Gpu) -> str | None:
    try:
        tiling = schedule.tiling_of(op.shape)
    except IllegalSchedule as error:
        return str(error)
    if tiling.smem_bytes > gpu.smem_per_cta_bytes:
        return f"a CTA takes {tiling.smem_bytes} bytes of shared memory, but has {gpu.smem_per_cta_bytes} on {gpu.name}"
    if tiling.num_threads > MAX_THREADS_PER_CTA:
        return f"a CTA has {tiling.num_threads} threads: use fewer warps, for at most {MAX_THREADS_PER_CTA} threads"
    return _spill_problem(tiling, most_registers(tiling.num_threads, gpu))


def _spill_problem(tiling: AttentionTiling, most: int) -> str | None:
    """Why the compiler would spill registers, of which a thread has `most`."""
    has = f"and {tiling.num_threads} threads leave it {most}"
    if (needed := num_summing_registers(tiling)) > most:
        return (
            f"{tiling.parts_at_once} loads at once take {needed} registers per thread, {has}: use fewer, or fewer warps"
        )
    if (needed := num_math_registers(tiling)) > most:
        problem = f"{tiling.columns} queries of {tiling.head_dim} take {needed} registers per thread, {has}"
        return f"{problem}: use fewer warps, or one team of them and separate warps that finish tasks"
    return None


def num_math_registers(tiling: AttentionTiling) -> int:
    """Registers of a thread that multiplies: for sums of values, fragments of queries, addresses and counters."""
    held = _num_held_registers(tiling)
    is_plain = tiling.num_teams == 1 and tiling.math_warps < 8 and tiling.finish_warps > 0
    is_plain &= tiling.engine is AttentionEngine.TMA
    return held + (_BESIDE_ONE_TEAM if is_plain else _BESIDE_TEAMS)


def num_summing_registers(tiling: AttentionTiling) -> int:
    """Registers of a thread that adds up spans: per load, and those for addresses and counters."""
    if tiling.finish_warps == 0:
        return _num_held_registers(tiling) + _PER_LOAD_BESIDE_SUMS * tiling.parts_at_once + _BESIDE_LOADS_AND_SUMS
    return 4 * tiling.parts_at_once + _BESIDE_LOADS


def _num_held_registers(tiling: AttentionTiling) -> int:
    """Registers for sums of values and fragments of queries."""
    return 6 * (tiling.columns // 8) * (tiling.head_dim // 16)


def _plan_problem(op: AttentionOp, schedule: AttentionSchedule, gpu: Gpu) -> str | None:
    share = schedule.cluster * schedule.tile_tokens
    if schedule.span_tokens < 1 or schedule.span_tokens % share:
        return f"a span of {schedule.span_tokens} tokens: use a multiple of {share}, a tile for each CTA of a cluster"
    longest = -(-op.shape.max_length // share) * share
    if schedule.span_tokens > longest:
        return f"a span of {schedule.span_tokens} tokens is longer than any context: use {longest}"
    spans = schedule.num_spans(op.shape)
    if spans == 1 and schedule.parts_at_once != PARTS_AT_ONCE[-2]:
        return f"a context of one span needs no addition of parts: use parts_at_once {PARTS_AT_ONCE[-2]}"
    blocks = -(-op.shape.columns // schedule.tiling_of(op.shape).columns)
    num_tasks = op.shape.sequences * op.shape.kv_heads * blocks * spans
    if num_tasks <= num_attention_clusters(gpu, schedule.cluster):
        alone = f"each of {num_tasks} tasks has its own queue"
        if schedule.contiguous:
            return f"{alone}, so neighbours do not matter: use contiguous false"
        if schedule.by_length:
            return f"{alone}, so lengths do not matter: use by_length false"
    if schedule.by_length and schedule.contiguous:
        return "a launch that assigns its tasks cannot place neighbours in one cluster: use contiguous false"
    if schedule.by_length and schedule.speculative:
        return "a launch that assigns its tasks does not know them before the lengths: use speculative false"
    if schedule.speculative and not op.form.knows_tokens_early:
        what = "a window" if op.form.paged is None else "pages"
        return f"with {what} nothing can be requested before a length is known: use speculative false"
    return None


def _next_problem(workload: Workload, op: AttentionOp, schedule: AttentionSchedule) -> str | None:
    if schedule.next_percent and workload.reader_of(op) is None:
        return f"no launch after {op.name} reads weights: use next_percent 0"
    if schedule.next_early and not schedule.next_percent:
        return "no weights are prefetched: use next_early false"
    return None
