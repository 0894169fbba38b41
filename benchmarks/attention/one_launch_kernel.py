"""Attention and its projection in one launch: what is tried, the two roles' plans, and the kernel. An experiment's.

Roles are those of CTAs or of warps. In the first form a CTA attends or projects, and an SM holds one of each or has one
role. In the second each CTA has warps for both, and shared memory for both rings.

Who has stored a result of a KV head posts its signal. Tasks of the projection wait for the heads of their rows, as
tasks of a chain wait for each other: the projection's device code is that of its own launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.plan.words import Plan
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES, Gpu
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.core.trial.limits import Limits
from tuner.errors import TunerError
from tuner.ops.attention.plans import check_attention
from tuner.ops.attention.source import render_attention
from tuner.ops.attention.tasks import AttentionPlan, assign
from tuner.search.rings import fitted
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args
from tuner.workers.source.render import render

from .pair_rows import _windowed, projection_of, projection_tilings
from .rows import Row, Variant, fitting, tiling_of

#: Name of the kernel, and what the parameter's size is a multiple of, bytes.
KERNEL, ALIGNMENT = "tuner_one_launch", 64
#: Of an attention's warps: those that multiply at least, and those that end tasks. A role of CTAs has eight warps then.
_MATH_WARPS, _FINISH_WARPS = 4, 3
#: Where an SM has one role, CTAs that attend at most.
_MOST_ATTENDING = 66
#: CTAs of roles by CTA that an SM holds, which is what it has; 0: roles by warp.
_ROOMS = (0, 2, 1)
#: A barrier of an attention that no role of the projection uses.
_FINISH_BARRIER = 12


@dataclass(frozen=True, kw_only=True)
class OneVariant:
    """What runs in one launch."""

    attention: Variant
    projection: Tiling
    #: Clusters that attend, at most.
    most_clusters: int
    #: CTAs that project, at most.
    most_projecting: int
    #: CTAs that an SM has, of either role; 0: one CTA with warps of both.
    ctas_per_sm: int
    #: Whether a step of the projection waits for the heads that it reads, or a task for all.
    by_head: bool

    def __str__(self) -> str:
        roles = f"{self.ctas_per_sm} CTAs an SM" if self.ctas_per_sm else "warps of both in a CTA"
        waits = "waits for each head" if self.by_head else "waits for all heads"
        return f"{self.attention} | {self.projection} | {roles}, {self.most_clusters} clusters attend, {waits}"


def aligned(num_bytes: int) -> int:
    """Whole repeats of the copy engine's swizzle."""
    return -(-num_bytes // 1024) * 1024


def one_variants(row: Row, gpu: Gpu) -> Iterator[OneVariant]:
    """Of all ways to share an SM, spans and clusters, and tilings of the projection."""
    workload, op = projection_of(row), row.op
    tilings = [one for one in projection_tilings(workload, gpu) if one.cluster_k == 1 and one.num_parts(0) == 1]
    for ctas_per_sm in _ROOMS:
        for cluster, spans in _spreads(row):
            if ctas_per_sm == 0 and cluster > 1:
                continue  # right on a CPU, but was not run on a card since it is
            most = _MOST_ATTENDING if ctas_per_sm == 1 else gpu.num_sms
            clusters = min(op.sequences * op.kv_heads * spans, most // cluster)
            free = gpu.num_sms - (clusters * cluster if ctas_per_sm == 1 else 0)
            for attention in dict.fromkeys(_attentions(row, cluster, spans, clusters, deep=ctas_per_sm == 1)):
                room = gpu.smem_per_cta_bytes
                if ctas_per_sm == 0:
                    room -= aligned(attention.tiling.smem_bytes)
                elif ctas_per_sm == 2:
                    room = gpu.smem_per_sm_bytes // 2 - SMEM_RESERVED_PER_CTA_BYTES
                    if attention.tiling.smem_bytes > room:
                        continue
                for projection in _projections(row, gpu, tilings[:2], room):
                    for by_head in (True, False) if op.kv_heads > 1 else (False,):
                        yield OneVariant(
                            attention=attention,
                            projection=projection,
                            most_clusters=clusters,
                            most_projecting=free // cluster * cluster,
                            ctas_per_sm=ctas_per_sm,
                            by_head=by_head,
                        )


def _projections(row: Row, gpu: Gpu, tilings: list[Tiling], room: int) -> Iterator[Tiling]:
    """As deep as there is room, without and with a window."""
    workload = projection_of(row)
    for tiling in tilings:
        shorter = fitted(workload, gpu, tiling, room)
        if shorter is not None:
            yield from dict.fromkeys((shorter, _windowed(workload, shorter)))


def _attentions(row: Row, cluster: int, spans: int, clusters: int, *, deep: bool) -> Iterator[Variant]:
    """With rings of two to four stages, or deep ones."""
    op, tile = row.op, 64
    while tile > 16 and cluster * tile * spans > max(op.max_length, 16 * cluster * spans):
        tile //= 2
    share = cluster * tile
    span_tokens = -(-op.max_length // (spans * share)) * share
    own = -(-min(span_tokens, op.max_length) // share) * -(-op.sequences * op.kv_heads * spans // clusters)
    warps = max(_MATH_WARPS, tile // 16)
    teams, is_ragged = warps // (tile // 16), set(row.lengths) != {op.max_length}
    for stages in (8,) if deep else (2, 3, 4):
        tiling = tiling_of(
            tile,
            warps=warps,
            stages=max(min(stages, own) // teams * teams, teams),
            queries=op.columns,
            cluster=cluster,
            finish_warps=_FINISH_WARPS,
        )
        yield fitting(
            row, Variant(tiling=tiling, span_tokens=span_tokens, speculative=not is_ragged, by_length=is_ragged)
        )


def _spreads(row: Row) -> list[tuple[int, int]]:
    """CTAs of a cluster and spans of a context, so that 8 CTAs attend at least."""
    slots, most = row.op.sequences * row.op.kv_heads, max(1, row.op.max_length // 32)
    found = [
        (cluster, spans)
        for cluster in (1, 2, 4, 8)
        for spans in (1, 2, 4, 8)
        if 8 <= slots * cluster * spans <= 264 and cluster * spans <= most
    ]
    return found or [(1, 1), (2, 1)]


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a variant is launched with."""

    source: str
    #: The projection's plan, as a parameter is made of it.
    product: Any
    attention: AttentionPlan
    num_ctas: int
    num_threads: int
    smem_bytes: int
    #: Of the projection's part of the parameter.
    product_bytes: int


def make(row: Row, variant: OneVariant, gpu: Gpu) -> Made:
    """Plans of both roles, and their kernel's source.

    Raises:
        TunerError: a plan is not legal.
    """
    workload, tiling, projection = projection_of(row), variant.attention.tiling, variant.projection
    reserved = gpu.num_sms - variant.most_projecting
    ordering = Ordering(rasters=(Raster(),), assignment=Assignment.STATIC, reserved_sms=reserved)
    try:
        plans = plans_for(workload, gpu, fused(Schedule.of(tiling=projection, ordering=ordering)))
    except TunerError:  # that leaves the grid as it is
        plans = plans_for(
            workload, gpu, fused(Schedule.of(tiling=projection, ordering=replace(ordering, reserved_sms=0)))
        )
    attention = assign(
        row.op,
        span_tokens=variant.attention.span_tokens,
        columns=tiling.columns,
        num_queues=variant.most_clusters,
        contiguous=variant.attention.contiguous,
        cluster=tiling.cluster,
        form=row.form,
        by_length=variant.attention.by_length,
    )
    check_attention(attention, tile_tokens=tiling.tile_tokens)
    product = with_waits(plans[0], row, variant, attention)
    nowhere = OpBuffers(a=16, w=16, bias=0, c=16, m=1, n=1, k=1)
    product_bytes = len(product_args(product, 0, 0, nowhere, (bytes(128),) * 2))
    projecting, product_smem = product.plan.num_ctas, dynamic_smem_bytes(workload, projection)
    whole = -(-projecting // tiling.cluster) * tiling.cluster
    if variant.ctas_per_sm:
        num_ctas, smem_bytes = whole + attention.num_ctas, max(tiling.smem_bytes, product_smem)
        num_threads = max(tiling.num_threads, projection.num_threads)
        roles = _Roles.of_ctas(projecting, whole, num_threads, variant.ctas_per_sm)
    else:
        num_ctas, smem_bytes = max(whole, attention.num_ctas), aligned(product_smem) + tiling.smem_bytes
        num_threads = projection.num_threads + tiling.num_threads
        roles = _Roles.of_warps(projecting, projection.num_threads, num_threads, aligned(product_smem), tiling.cluster)
    return Made(
        source=_source(row, variant, roles, product_bytes),
        product=product,
        attention=attention,
        num_ctas=num_ctas,
        num_threads=num_threads,
        smem_bytes=smem_bytes,
        product_bytes=product_bytes,
    )


def build(source: str) -> bytes:
    """The cubin.

    Raises:
        TunerError: the kernel spills, or does not compile.
    """
    cubin, log = compile_source(source, "sm_90a")
    if spilled := parse_log(log).spill_bytes:
        raise TunerError(f"it spills {spilled} bytes")
    return cubin


def with_waits(verified: Any, row: Row, variant: OneVariant, attention: AttentionPlan) -> Any:
    """The projection's plan, whose tasks wait for the heads of their rows."""
    op, tile, plan = row.op, verified.graph.tiling.cta_tiles[0], verified.plan
    columns, sequences = op.query_heads * op.head_dim, tile.m // op.new_tokens
    num_blocks = -(-op.sequences // sequences)
    waits = []
    for block in range(num_blocks):
        own = min(sequences, op.sequences - block * sequences)
        posts = own * attention.num_blocks * variant.attention.tiling.cluster
        signals = range(block * op.kv_heads, (block + 1) * op.kv_heads)
        if variant.by_head:
            waits += [(one, one + 1, posts, posts, head * columns // tile.k) for head, one in enumerate(signals)]
        else:
            waits.append((signals[0], signals[-1] + 1, posts, posts, 0))
    tasks, of_block = plan.tasks.copy(), len(waits) // num_blocks
    tasks[:, 3] = tasks[:, 1] * of_block
    tasks[:, 4] = tasks[:, 3] + of_block
    changed = replace(plan, tasks=tasks, waits=np.array(waits, dtype=np.int32), num_signals=num_blocks * op.kv_heads)
    read_back = Plan.from_words(changed.words)
    return SimpleNamespace(plan=read_back, words=read_back.words, graph=verified.graph)


def product_args(product: Any, words: int, workspace: int, buffers: OpBuffers, maps: tuple[bytes, ...]) -> bytes:
    """The projection's part of the parameter; `maps` are encoded."""
    args = pack_args(words, workspace, Limits.spin_limit_cycles, product, (buffers,), is_dependent=True)
    args = extend_args(args, first_tasks(product), maps)
    return args + bytes(-len(args) % ALIGNMENT)


@dataclass(frozen=True, kw_only=True)
class _Roles:
    """Who attends and who projects, as the source says it."""

    #: Of an attention: the first of its threads, and of its blocks.
    first_thread: int
    first_block: int
    bounds: str
    body: str

    @classmethod
    def of_ctas(cls, projecting: int, first_block: int, num_threads: int, ctas_per_sm: int) -> _Roles:
        body = f"""  if (blockIdx.x < {projecting}) {{
    if (threadIdx.x < projecting::kNumThreads) projecting::project_cta(args.product, of_cta);
  }} else if (blockIdx.x >= {first_block} && threadIdx.x < attending::kAttentionThreads) {{
    attending::attend_cta(args.attention, of_cta);
  }}"""
        return cls(first_thread=0, first_block=first_block, bounds=f"{num_threads}, {ctas_per_sm}", body=body)

    @classmethod
    def of_warps(cls, projecting: int, first_thread: int, num_threads: int, smem_offset: int, cluster: int) -> _Roles:
        # A cluster's barrier counts the warps that project, too.
        arrive = "    attending::cluster_arrive();\n" if cluster > 1 else ""
        body = f"""  if (threadIdx.x >= {first_thread}) {{
    attending::attend_cta(args.attention, of_cta + {smem_offset});
  }} else {{
{arrive}    if (blockIdx.x < {projecting}) projecting::project_cta(args.product, of_cta);
  }}"""
        return cls(first_thread=first_thread, first_block=0, bounds=f"{num_threads}, 1", body=body)


_POST = """struct Posts {
  u32* signals;
  int sequences, zero;  // of a block of rows
};

// All threads that end tasks: the result of a KV head of a sequence is there.
__device__ __forceinline__ void post_result(const AttentionArgs& args, const AttentionTask& task, int thread) {
  barrier_sync<kFinishThreads>(kFinishBarrier);
  if (thread == 0) {
    const Posts& posts = *reinterpret_cast<const Posts*>(&args + 1);
    add_release_gpu(posts.signals + task.sequence() / posts.sequences * args.num_kv_heads + task.head(), 1);
  }
}

"""
_ARRIVE = "  if (args.num_spans > 1 && !is_empty) arrive(args, ring, hand, shared, number, thread, share, live);\n"
_COMBINED = "  stamp(args, kCombined, number, thread == 0);\n}\n"
_COUNTS_IN = "// All threads that end tasks: the span counts itself in;"


def _source(row: Row, variant: OneVariant, roles: _Roles, product_bytes: int) -> str:
    """Both kernels' device code, each in a namespace, and the kernel that calls them."""
    # A bound ends with a barrier of the whole CTA, of which only some threads attend here.
    attention = render_attention(variant.attention.tiling, row.op.dtype, form=row.form, bounded=False)
    attention = _as_function(attention, "attend_cta", "AttentionArgs", "shared")
    attention = attention.replace("threadIdx.x", "(threadIdx.x - kFirstThread)")
    attention = attention.replace("blockIdx.x", "(blockIdx.x - kFirstBlock)")
    for old, new in (
        (_ARRIVE, f"{_ARRIVE}  if (!is_empty && live.count() == 1) post_result(args, hand.task, thread);\n"),
        (_COMBINED, "  if (live.count() > 1) post_result(args, hand.task, thread);\n}\n"),
        (_COUNTS_IN, _POST + _COUNTS_IN),
        ("constexpr int kFinishBarrier = 1;", f"constexpr int kFinishBarrier = {_FINISH_BARRIER};"),
    ):
        assert attention.count(old) == 1, f"the attention's code has changed: {old}"
        attention = attention.replace(old, new)
    projection = render(projection_of(row), variant.projection)
    projection = _as_function(projection, "project_cta", "WgmmaArgs", "memory")
    cluster = variant.attention.tiling.cluster
    dims = f"__cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
    return f"""namespace projecting {{
{projection}
}}  // namespace projecting
namespace attending {{
constexpr unsigned kFirstThread = {roles.first_thread}, kFirstBlock = {roles.first_block};
{attention}
}}  // namespace attending

struct OneLaunchArgs {{
  projecting::WgmmaArgs product;
  attending::AttentionArgs attention;
  attending::Posts posts;
}};
static_assert(sizeof(projecting::WgmmaArgs) == {product_bytes}, "as the host lays it out");

extern "C" __global__ void {dims} __launch_bounds__({roles.bounds})
    {KERNEL}(const __grid_constant__ OneLaunchArgs args) {{
  extern __shared__ __align__(1024) unsigned char of_cta[];
{roles.body}
}}
"""


def _as_function(source: str, name: str, parameter: str, memory: str) -> str:
    """A kernel of dynamic shared memory as a function, which is given it."""
    begin = source.index(f"(const __grid_constant__ {parameter} args)")
    head = source.rindex('extern "C" __global__', 0, begin)
    body = source[source.index("{", begin) + 1 :]
    declared = f"  extern __shared__ __align__(1024) unsigned char {memory}[];\n"
    assert body.count(declared) == 1, f"the code of {name} has changed"
    head_text = f"__device__ __forceinline__ void {name}(const {parameter}& args, unsigned char* {memory}) {{"
    return source[:head] + head_text + body.replace(declared, "")
