"""The kernel of an attention and its projection in one launch, and the plans of both roles.

Both roles have the device code of their own launches, each in a namespace. Who has stored a result of a KV head posts
its signal. Tasks of the projection wait for the heads of their rows, as tasks of a chain wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.plan.attention import AttentionPlan, assign
from tuner.core.plan.words import Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.proof.attention import check_attention
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, Schedule
from tuner.core.trial.limits import Limits
from tuner.workers.source.attention import render_attention
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args
from tuner.workers.source.render import render

from .one_launch_variants import OneVariant, Roles, aligned
from .pair_rows import projection_of
from .rows import Row

#: Name of the kernel, and what the parameter's size is a multiple of, bytes.
KERNEL, ALIGNMENT = "tuner_one_launch", 64
#: A barrier of an attention that no role of the projection uses.
_FINISH_BARRIER = 12


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
    """Plans of both roles and their kernel.

    Raises:
        TunerError: a plan is not legal.
    """
    workload, tiling, projection = projection_of(row), variant.attention.tiling, variant.projection
    ordering = Ordering(rasters=(Raster(),), assignment=Assignment.STATIC)
    (verified,) = plans_for(workload, gpu, fused(Schedule(tiling=projection, ordering=ordering)))
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
    product = with_waits(verified, row, variant, attention)
    nowhere = OpBuffers(a=16, w=16, bias=0, c=16, m=1, n=1, k=1)
    product_bytes = len(product_args(product, 0, 0, nowhere, (bytes(128),) * 2))
    projecting, product_smem = product.plan.num_ctas, dynamic_smem_bytes(workload, projection)
    whole = -(-projecting // tiling.cluster) * tiling.cluster
    if variant.roles is Roles.WARPS:
        num_ctas, smem_bytes = max(whole, attention.num_ctas), aligned(product_smem) + tiling.smem_bytes
        num_threads = projection.num_threads + tiling.num_threads
        blocks = _Blocks.of_warps(projecting, projection.num_threads, num_threads, aligned(product_smem), num_ctas)
    else:
        num_ctas, smem_bytes = whole + attention.num_ctas, max(tiling.smem_bytes, product_smem)
        num_threads = max(tiling.num_threads, projection.num_threads)
        attends_first = variant.roles is Roles.CTAS_ATTENTION_FIRST
        blocks = _Blocks.of_ctas(projecting, whole, attention.num_ctas, num_threads, attends_first=attends_first)
    return Made(
        source=_source(row, variant, blocks, product_bytes),
        product=product,
        attention=attention,
        num_ctas=num_ctas,
        num_threads=num_threads,
        smem_bytes=smem_bytes,
        product_bytes=product_bytes,
    )


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
class _Blocks:
    """Which threads and blocks have which role, as the source says it."""

    #: Of the attention: the first of its threads and of its blocks, and how many blocks it has.
    first_thread: int
    first_block: int
    num_blocks: int
    #: The first block of the projection.
    first_projecting: int
    bounds: str
    body: str

    @classmethod
    def of_ctas(cls, projecting: int, whole: int, attending: int, num_threads: int, *, attends_first: bool) -> _Blocks:
        """`whole`: the blocks of whole clusters that project."""
        first_block, first_projecting = (0, attending) if attends_first else (whole, 0)
        body = f"""  if (blockIdx.x - {first_block}u < {attending}u) {{
    if (threadIdx.x < attending::kAttentionThreads) attending::attend_cta(args.attention, of_cta);
  }} else if (blockIdx.x - {first_projecting}u < {projecting}u && threadIdx.x < projecting::kNumThreads) {{
    projecting::project_cta(args.product, of_cta);
  }}"""
        return cls(
            first_thread=0,
            first_block=first_block,
            num_blocks=attending,
            first_projecting=first_projecting,
            bounds=f"{num_threads}, 2",
            body=body,
        )

    @classmethod
    def of_warps(cls, projecting: int, first_thread: int, num_threads: int, smem_offset: int, num_ctas: int) -> _Blocks:
        """The attention's threads, and shared memory, come behind the projection's. CTAs of a cluster meet as the
        attention wants it, so the others arrive, too."""
        body = f"""  if (threadIdx.x >= {first_thread}) {{
    attending::attend_cta(args.attention, of_cta + {smem_offset});
  }} else {{
    if constexpr (attending::kCluster > 1) attending::cluster_arrive();
    if (blockIdx.x < {projecting}) projecting::project_cta(args.product, of_cta);
  }}"""
        return cls(
            first_thread=first_thread,
            first_block=0,
            num_blocks=num_ctas,
            first_projecting=0,
            bounds=f"{num_threads}, 1",
            body=body,
        )


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
_ARRIVE = "  if (args.num_spans > 1 && !is_empty) arrive(args, hand, shared, number, thread, share, live);\n"
_COMBINED = "  stamp(args, kCombined, number, thread == 0);\n}\n"
_COUNTS_IN = "// All threads that end tasks: the span counts itself in;"


def _source(row: Row, variant: OneVariant, blocks: _Blocks, product_bytes: int) -> str:
    """Both kernels' device code, each in a namespace, and the kernel that calls them."""
    attention = render_attention(variant.attention.tiling, row.op.dtype, form=row.form)
    attention = _as_function(attention, "attend_cta", "AttentionArgs", "shared")
    attention = attention.replace("threadIdx.x", "(threadIdx.x - kFirstThread)")
    attention = attention.replace("blockIdx.x", "(blockIdx.x - kFirstBlock)").replace("gridDim.x", "kNumBlocks")
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
    projection = projection.replace("blockIdx.x", "(blockIdx.x - kFirstBlock)")
    cluster = variant.attention.tiling.cluster
    dims = f"__cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
    return f"""namespace projecting {{
constexpr unsigned kFirstBlock = {blocks.first_projecting};
{projection}
}}  // namespace projecting
namespace attending {{
constexpr unsigned kFirstThread = {blocks.first_thread};
constexpr unsigned kFirstBlock = {blocks.first_block}, kNumBlocks = {blocks.num_blocks};
{attention}
}}  // namespace attending

struct OneLaunchArgs {{
  projecting::WgmmaArgs product;
  attending::AttentionArgs attention;
  attending::Posts posts;
}};
static_assert(sizeof(projecting::WgmmaArgs) == {product_bytes}, "as the host lays it out");

extern "C" __global__ void {dims} __launch_bounds__({blocks.bounds})
    {KERNEL}(const __grid_constant__ OneLaunchArgs args) {{
  extern __shared__ __align__(1024) unsigned char of_cta[];
{blocks.body}
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
