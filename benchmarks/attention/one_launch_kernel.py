"""Attention and projection in one launch: the kernel's source, and the two roles' plans. An experiment's, no plan kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.plan.attention import AttentionPlan, assign
from tuner.core.plan.words import Plan
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES, Gpu
from tuner.core.proof.attention import check_attention
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.core.trial.limits import Limits
from tuner.errors import TunerError
from tuner.search.attention_beside import fitted
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.source.attention import render_attention
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args
from tuner.workers.source.render import render

from .pair_rows import _windowed, projection_of, projection_tilings
from .rows import Row, Variant, fitting, tiling_of

KERNEL = "tuner_one_launch"
ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True)
class OneVariant:
    """What runs in one launch."""

    attention: Variant
    projection: Tiling
    #: Clusters that attend, at most.
    most_clusters: int
    #: CTAs that project.
    num_projecting: int
    #: CTAs that an SM holds by its shared memory and registers.
    held_per_sm: int
    by_head: bool
    programmatic: bool = True

    def __str__(self) -> str:
        waits = "waits for each head" if self.by_head else "waits for all heads"
        ctas = (
            f"{self.most_clusters} clusters attend, {self.num_projecting} CTAs project, an SM holds {self.held_per_sm}"
        )
        return f"{self.attention} | {self.projection} | {ctas}, {waits}{'' if self.programmatic else ', plain'}"


#: CTAs of a launch that an SM holds by its shared memory and registers, and has. Where it holds one more than it has, the
#: next launch's CTAs are there while this one ends.
_ROOMS = ((2, 1), (2, 2), (1, 1))
#: Where an SM has one role, CTAs that attend at most.
_MOST_ATTENDING = 66


def one_variants(row: Row, gpu: Gpu) -> Iterator[OneVariant]:
    """Both roles on each SM, or one on each; alone there, or with room for the next launch."""
    workload, op = projection_of(row), row.op
    tilings = [one for one in projection_tilings(workload, gpu) if one.cluster_k == 1 and one.num_parts(0) == 1]
    for (held, ctas_per_sm), (cluster, spans) in product(_ROOMS, _spreads(row)):
        most = min(gpu.smem_per_sm_bytes // held - SMEM_RESERVED_PER_CTA_BYTES, gpu.smem_per_cta_bytes)
        clusters = min(
            op.sequences * op.kv_heads * spans, (gpu.num_sms if ctas_per_sm == 2 else _MOST_ATTENDING) // cluster
        )
        for attention in dict.fromkeys(_attentions(row, cluster, spans, clusters, most, deep=held == 1)):
            free = gpu.num_sms - (clusters * cluster if ctas_per_sm == 1 else 0)
            for tiling in tilings[: 1 if ctas_per_sm == 2 else 2]:
                shorter = fitted(workload, gpu, tiling, most)
                if shorter is None:
                    continue
                for chosen in dict.fromkeys((shorter, *([_windowed(workload, shorter)] if held > ctas_per_sm else []))):
                    for by_head in (True, False) if op.kv_heads > 1 and cluster * spans > 1 else (op.kv_heads > 1,):
                        yield OneVariant(
                            attention=attention,
                            projection=chosen,
                            most_clusters=clusters,
                            num_projecting=free // cluster * cluster,
                            held_per_sm=held,
                            by_head=by_head,
                        )


def _attentions(row: Row, cluster: int, spans: int, clusters: int, most: int, *, deep: bool) -> Iterator[Variant]:
    """Of few warps, with rings of two stages and three, or deep ones."""
    op, tile = row.op, 64
    while tile > 16 and cluster * tile * spans > max(op.max_length, 16 * cluster * spans):
        tile //= 2
    share = cluster * tile
    span_tokens = -(-op.max_length // (spans * share)) * share
    own = -(-min(span_tokens, op.max_length) // share) * -(-op.sequences * op.kv_heads * spans // clusters)
    math = max(4, tile // 16)
    teams, is_ragged = math // (tile // 16), set(row.lengths) != {op.max_length}
    for stages in (8,) if deep else (2, 3):
        tiling = tiling_of(
            tile,
            warps=math,
            stages=max(min(stages, own) // teams * teams, teams),
            queries=op.columns,
            cluster=cluster,
            finish_warps=3,
        )
        if tiling.smem_bytes <= most:
            yield fitting(
                row, Variant(tiling=tiling, span_tokens=span_tokens, speculative=not is_ragged, by_length=is_ragged)
            )


def _spreads(row: Row) -> list[tuple[int, int]]:
    """CTAs of a cluster and spans of a context, so that 8 to 132 CTAs attend."""
    slots = row.op.sequences * row.op.kv_heads
    most = max(1, row.op.max_length // 32)
    found = []
    for cluster in (1, 2, 4, 8):
        for spans in (1, 2, 4, 8):
            if 8 <= slots * cluster * spans <= 264 and cluster * spans <= most:
                found.append((cluster, spans))
    return found or [(1, 1), (2, 1)]


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a variant is launched with."""

    cubin: bytes
    product: Any
    attention: AttentionPlan
    num_threads: int
    smem_bytes: int
    first_block: int
    product_bytes: int


def build(row: Row, variant: OneVariant, gpu: Gpu) -> Made:
    """Plans of both roles and their kernel.

    Raises:
        TunerError: it spills.
    """
    workload, op, tiling = projection_of(row), row.op, variant.attention.tiling
    reserved = gpu.num_sms - variant.num_projecting
    ordering = Ordering(rasters=(Raster(),), assignment=Assignment.STATIC, reserved_sms=reserved)
    if variant.projection.cluster_size > 1:
        raise TunerError("the projection's CTAs are alone")
    verified = None
    for one in (ordering, replace(ordering, reserved_sms=0)):
        with contextlib.suppress(TunerError):
            verified = plans_for(workload, gpu, fused(Schedule(tiling=variant.projection, ordering=one)))[0]
            break
    if verified is None:
        verified = plans_for(workload, gpu, fused(Schedule(tiling=variant.projection, ordering=ordering)))[0]
    attention = assign(
        op,
        span_tokens=variant.attention.span_tokens,
        columns=tiling.columns,
        num_queues=variant.most_clusters,
        contiguous=variant.attention.contiguous,
        cluster=tiling.cluster,
        form=row.form,
        by_length=variant.attention.by_length,
    )
    check_attention(attention, tile_tokens=tiling.tile_tokens)
    own = with_waits(verified, row, variant, attention)
    size = len(product_args(own, 0, 0, OpBuffers(a=16, w=16, bias=0, c=16, m=1, n=1, k=1), (bytes(128),) * 2))
    first = -(-own.plan.num_ctas // tiling.cluster) * tiling.cluster
    threads = max(tiling.num_threads, variant.projection.num_threads)
    source = source_of(row, variant, own.plan.num_ctas, first, threads, size)
    cubin, log = compile_source(source, "sm_90a")
    if spilled := parse_log(log).spill_bytes:
        raise TunerError(f"it spills {spilled} bytes")
    return Made(
        cubin=cubin,
        product=own,
        attention=attention,
        num_threads=threads,
        smem_bytes=max(tiling.smem_bytes, dynamic_smem_bytes(workload, variant.projection)),
        first_block=first,
        product_bytes=size,
    )


def with_waits(verified: Any, row: Row, variant: OneVariant, attention: AttentionPlan) -> Any:
    """The projection's plan, whose tasks wait for the heads of their rows; as a launch's parameter is made of it."""
    op, tile, plan = row.op, verified.graph.tiling.cta_tiles[0], verified.plan
    group = op.query_heads * op.head_dim
    num_rows = -(-op.sequences * op.new_tokens // tile.m)
    waits = []
    for block in range(num_rows):
        sequences = min(tile.m // op.new_tokens, op.sequences - block * tile.m // op.new_tokens)
        posts = sequences * attention.num_blocks * variant.attention.tiling.cluster
        signals = range(block * op.kv_heads, (block + 1) * op.kv_heads)
        if variant.by_head:
            waits += [(s, s + 1, posts, posts, head * group // tile.k) for head, s in enumerate(signals)]
        else:
            waits.append((signals[0], signals[-1] + 1, posts, posts, 0))
    per_row = len(waits) // num_rows
    tasks = plan.tasks.copy()
    tasks[:, 3] = tasks[:, 1] * per_row
    tasks[:, 4] = tasks[:, 3] + per_row
    changed = replace(plan, tasks=tasks, waits=np.array(waits, dtype=np.int32), num_signals=num_rows * op.kv_heads)
    changed = Plan.from_words(changed.words)
    return SimpleNamespace(plan=changed, words=changed.words, graph=verified.graph)


def product_args(product: Any, words: int, workspace: int, buffers: OpBuffers, maps: tuple[bytes, ...]) -> bytes:
    """The projection's part of the parameter; `maps` are encoded."""
    args = pack_args(words, workspace, Limits.spin_limit_cycles, product, (buffers,), is_dependent=True)
    args = extend_args(args, first_tasks(product), maps)
    return args + bytes(-len(args) % ALIGNMENT)


def source_of(row: Row, variant: OneVariant, num_projecting: int, first: int, threads: int, product_bytes: int) -> str:
    """One source of both kernels' device code."""
    tiling = variant.attention.tiling
    attention = render_attention(tiling, row.op.dtype, form=row.form)
    head = attention.index('extern "C" __global__')
    body = attention[attention.index("{", head) + 1 :].replace(
        "  extern __shared__ __align__(1024) unsigned char shared[];\n", "", 1
    )
    attention = (
        attention[:head]
        + "__device__ __forceinline__ void attend_cta(const AttentionArgs& args, unsigned char* shared) {"
        + body
    )
    attention = attention.replace("static_cast<int>(blockIdx.x)", "(static_cast<int>(blockIdx.x) - kFirstBlock)")
    attention = _swap(
        attention,
        "  if (args.num_spans > 1 && !is_empty) arrive(args, hand, shared, number, thread, share, live);\n",
        "  if (args.num_spans > 1 && !is_empty) arrive(args, hand, shared, number, thread, share, live);\n"
        "  if (!is_empty && live.count() == 1) post_result(args, hand.task, thread);\n",
    )
    attention = _swap(
        attention,
        "  stamp(args, kCombined, number, thread == 0);\n}\n",
        "  if (live.count() > 1) post_result(args, hand.task, thread);\n}\n",
    )
    attention = _swap(
        attention,
        "// All threads that end tasks: the span counts itself in;",
        """struct Posts {
  u32* signals;
  int sequences, zero;  // of a block of rows
};

__device__ __forceinline__ void post_result(const AttentionArgs& args, const AttentionTask& task, int thread) {
  barrier_sync<kFinishThreads>(kFinishBarrier);
  if (thread == 0) {
    const Posts& posts = *reinterpret_cast<const Posts*>(&args + 1);
    add_release_gpu(posts.signals + task.sequence() / posts.sequences * args.num_kv_heads + task.head(), 1);
  }
}

// All threads that end tasks: the span counts itself in;""",
    )
    product = render(projection_of(row), variant.projection)
    head = product.index('extern "C" __global__ void TUNER_CLUSTER_DIMS')
    product = (
        product[:head]
        + "__device__ __forceinline__ void project_cta(const WgmmaArgs& args, unsigned char* memory) {"
        + product[product.index("{", head) + 1 :].replace(
            "  extern __shared__ __align__(1024) unsigned char memory[];\n", "", 1
        )
    )
    includes = sorted({line for line in (attention + product).splitlines() if line.startswith("#include")})
    assert not includes, includes
    cluster = f"__cluster_dims__({tiling.cluster}, 1, 1)" if tiling.cluster > 1 else ""
    return f"""namespace projecting {{
{product}
}}  // namespace projecting
namespace attending {{
constexpr int kFirstBlock = {first};
{attention}
}}  // namespace attending

struct OneLaunchArgs {{
  projecting::WgmmaArgs product;
  attending::AttentionArgs attention;
  attending::Posts posts;
}};
static_assert(sizeof(projecting::WgmmaArgs) == {product_bytes}, "as the host lays it out");

extern "C" __global__ void {cluster} __launch_bounds__({threads}, {variant.held_per_sm})
    {KERNEL}(const __grid_constant__ OneLaunchArgs args) {{
  extern __shared__ __align__(1024) unsigned char of_cta[];
  if (blockIdx.x < {num_projecting}) {{
    if (threadIdx.x < projecting::kNumThreads) projecting::project_cta(args.product, of_cta);
  }} else if (blockIdx.x >= {first} && threadIdx.x < attending::kAttentionThreads) {{
    attending::attend_cta(args.attention, of_cta);
  }}
}}
"""


def _swap(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, (text.count(old), old)
    return text.replace(old, new)
