"""An attention kernel: its source, the size of its shared memory, its parameter."""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from dataclasses import dataclass

from tuner.core.plan.attention import MOST_QUEUES, AttentionPlan
from tuner.core.problem.attention import DecodeAttention
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.attention import AttentionSchedule, AttentionTiling

from .render import IS_BF16, device_text, inlined, without_comments

#: The device files in the order in which one includes the other, behind the first lines of config.cuh.
ATTENTION_FILES = (
    "ptx.cuh",
    "ptx_hopper.cuh",
    "config_attention.cuh",
    "ptx_attention.cuh",
    "args_attention.cuh",
    "ring_attention.cuh",
    "products.cuh",
    "merge_attention.cuh",
    "attention.cuh",
)

#: Name of the kernel.
ATTENTION_KERNEL = "tuner_attention"

#: Tasks of a CTA that a traced build stamps, and the 64-bit words of each; `kTracedTasks` and `kTraceWords`.
TRACED_TASKS, TRACE_WORDS = 4, 8
#: Elements of a line of the swizzle.
_LINE_DIMS = 64
_ARGS_ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True)
class CacheMap:
    """A tensor map of a cache, innermost first: 64 elements, tokens of all heads, lines of a head."""

    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NextWeights:
    """Weights [num_rows, row_bytes] of the launch behind: a launch brings the beginning of each row into the L2."""

    address: int
    num_rows: int
    row_bytes: int
    #: Of each row, a multiple of 16.
    taken_bytes: int

    def __post_init__(self) -> None:
        """Checks what the copy engine asks for.

        Raises:
            ValueError: rows that are no whole vectors, or more of them than there is.
        """
        if self.address % 16 or self.row_bytes % 16 or self.taken_bytes % 16:
            raise ValueError(f"{self}: address, rows and what is taken of them are multiples of 16 bytes")
        if not 0 <= self.taken_bytes <= self.row_bytes:
            raise ValueError(f"{self.taken_bytes} bytes are no part of a row of {self.row_bytes}")


NO_WEIGHTS = NextWeights(address=0, num_rows=0, row_bytes=0, taken_bytes=0)


@dataclass(frozen=True, kw_only=True)
class AttentionBuffers:
    """Device addresses of a launch; the two caches come as encoded tensor maps."""

    k_map: bytes
    v_map: bytes
    q: int
    out: int
    #: int32 of each sequence.
    lengths: int
    tasks: int
    queues: int
    #: Of each slot and span `AttentionTiling.partial_floats`.
    partials: int
    #: uint32 of each `AttentionPlan.num_counters`, zero before the first launch.
    arrivals: int
    #: `TRACED_TASKS * TRACE_WORDS` of each CTA, or 0.
    trace: int


def cache_map(op: DecodeAttention, tiling: AttentionTiling) -> CacheMap:
    """Of K and of V alike."""
    size = op.dtype.size_bytes
    rows, lines = op.sequences * op.kv_heads * op.max_length, op.head_dim // _LINE_DIMS
    return CacheMap(
        dims=(_LINE_DIMS, rows, lines),
        strides_bytes=(op.head_dim * size, _LINE_DIMS * size),
        box=(_LINE_DIMS, tiling.tile_tokens, lines),
    )


def workspace_words(plan: AttentionPlan, schedule: AttentionSchedule) -> tuple[int, int]:
    """Of 32 bits: counters of arrivals, zero before the first launch, and floats that spans leave of their sums."""
    floats = plan.num_slots * plan.num_spans * schedule.tiling_of(plan.op).partial_floats
    return plan.num_counters, floats if plan.num_spans > 1 else 4


@functools.cache
def attention_version() -> str:
    """12 hex digits that name the code of an attention's device files, as `kernel_version` does of a product's."""
    text = "".join(device_text(name) for name in ATTENTION_FILES)
    return hashlib.sha256(without_comments(text).encode()).hexdigest()[:12]


def render_attention(tiling: AttentionTiling, dtype: Dtype, *, traced: bool = False) -> str:
    """The source of one attention kernel, the same for every number of sequences, heads and tokens."""
    config = f"""#define TUNER_ATTENTION_CONFIG
constexpr int kHeadDim = {tiling.head_dim};
constexpr int kColumns = {tiling.columns};
constexpr int kLiveColumns = {tiling.kept_columns};
constexpr int kTileTokens = {tiling.tile_tokens};
constexpr int kStages = {tiling.num_stages};
constexpr int kMathWarps = {tiling.math_warps};
constexpr int kFinishWarps = {tiling.finish_warps};
constexpr int kCluster = {tiling.cluster};
constexpr int kPartsAtOnce = {tiling.parts_at_once};
constexpr bool kTracePhases = {str(traced).lower()};
#define TUNER_ATTENTION_CLUSTER {f"__cluster_dims__({tiling.cluster}, 1, 1)" if tiling.cluster > 1 else ""}
"""
    types, _, ops = device_text("config.cuh").partition("// One op of the chain")
    assert ops, "config.cuh has the hints in front of the ops"
    types = types.replace("#pragma once\n", "")
    texts = [f"// ---- config.cuh\n{types}constexpr bool kBf16 = {IS_BF16[dtype]};\n"]
    for name in ATTENTION_FILES:
        before, default, after = inlined(name).partition("#ifndef TUNER_ATTENTION_CONFIG\n")
        if default:
            before, after = before + config, after.partition("#endif\n")[2]
        texts.append(f"// ---- {name}\n{before}{after}")
    return "\n".join(texts)


def next_weights_of(workload: Workload, index: int, schedule: AttentionSchedule, address: int = 0) -> NextWeights:
    """What the launch of attention `index` asks for, of weights at this address; all zeros for nothing."""
    reader = workload.reader_of(workload.attentions[index])
    row_bytes = reader.k * workload.dtype.size_bytes if reader else 0
    taken_bytes = schedule.taken_bytes(row_bytes)
    if reader is None or not taken_bytes:
        return NO_WEIGHTS
    return NextWeights(address=address, num_rows=reader.weight_rows, row_bytes=row_bytes, taken_bytes=taken_bytes)


def pack_attention_args(
    plan: AttentionPlan, buffers: AttentionBuffers, *, speculative: bool, next_weights: NextWeights | None = None
) -> bytes:
    """The kernel's parameter. `speculative`: the first tiles are requested before their sequence's length is known.

    Raises:
        ValueError: more queues than the parameter has room for.
    """
    if plan.num_queues > MOST_QUEUES:
        raise ValueError(f"{plan.num_queues} queues: the parameter has room for {MOST_QUEUES}")
    op = plan.op
    addresses = (buffers.q, buffers.out, buffers.lengths, buffers.tasks, buffers.queues)
    args = struct.pack("<8Q", *addresses, buffers.partials, buffers.arrivals, buffers.trace)
    behind = next_weights or NO_WEIGHTS
    args += struct.pack("<Q4i", behind.address, behind.num_rows, behind.row_bytes, behind.taken_bytes, 0)
    args += struct.pack("<4i", op.kv_heads, op.query_heads, op.new_tokens, plan.num_blocks)
    args += struct.pack("<3iI", op.max_length, plan.span_tokens, plan.num_spans, plan.arrivals_per_launch)
    args += struct.pack("<fi", op.score_scale * math.log2(math.e), speculative)
    args += plan.first_tasks.tobytes() + bytes(8 * (MOST_QUEUES - plan.num_queues))
    args = buffers.k_map + buffers.v_map + args
    return args + bytes(-len(args) % _ARGS_ALIGNMENT)
