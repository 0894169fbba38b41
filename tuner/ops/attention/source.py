"""An attention kernel: its source, the size of its shared memory, and its parameter."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.problem.workload import Dtype, Workload
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.ops.attention.rules import num_math_registers, num_summing_registers
from tuner.ops.attention.schedule import AttentionEngine, AttentionSchedule, AttentionTiling
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.workers.source.refused import signed
from tuner.workers.source.render import config_types, device_text, inlined, without_comments
from tuner.workers.source.rows import with_rows

#: How each engine loads queries and cache into shared memory.
COPIES = {AttentionEngine.TMA: "copies_tma.cuh", AttentionEngine.MMA: "copies_mma.cuh"}
_FIRST_FILES = (
    "ptx.cuh",
    "element.cuh",
    "ptx_hopper.cuh",
    "config_attention.cuh",
    "ptx_attention.cuh",
    "args_attention.cuh",
    "context_attention.cuh",
    "ring_attention.cuh",
    "wait_attention.cuh",
)
_LAST_FILES = ("request_attention.cuh", "products.cuh", "merge_attention.cuh", "attention.cuh")
#: The device files of all engines; a source contains one of the copy files.
ATTENTION_FILES = (*_FIRST_FILES, *COPIES.values(), *_LAST_FILES)

#: Name of the kernel.
ATTENTION_KERNEL = "tuner_attention"

#: After `REFUSED_WORDS`, in the same memory, come two words with which a launch checks that all CTAs have read the same
#: lengths, then the record of an expired wait: `AttentionAbort`. `STATUS_WORDS` counts all of them.
ABORT_WORD, STATUS_WORDS = 8, 16
_ABORT_WORDS = 6
#: What an expired wait was for, by `Waited`.
_WAITED = (
    "its next task",
    "room for its next task",
    "a free stage of its ring",
    "keys",
    "values",
    "the sums of its warps",
    "its sums to be read",
    "the sums of its cluster",
)
#: The kinds for a wrong number of arrivals, and for lengths that CTAs have read differently.
_ARRIVALS, _LENGTHS = len(_WAITED), len(_WAITED) + 1
#: Elements per line of the swizzle.
_LINE_DIMS = 64
#: Maximum registers per thread that leave room for two warps of another launch on a scheduler with three warps, and the
#: number of threads for which this holds.
_ROOMY_REGISTERS, _ROOMY_THREADS = 128, 512


@dataclass(frozen=True, kw_only=True)
class CacheMap:
    """A tensor map of a cache, innermost dimension first: 64 elements, rows of all pages, lines of a row."""

    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NextWeights:
    """Weights [num_rows, row_bytes] of the next launch: a launch prefetches the beginning of each row into the L2."""

    num_rows: int
    row_bytes: int
    #: Bytes of each row, a multiple of 16.
    taken_bytes: int
    #: Whether the prefetch comes before the previous launch has ended; otherwise, when a CTA's last tile has arrived.
    early: bool = False

    def __post_init__(self) -> None:
        """Checks the copy engine's conditions.

        Raises:
            ValueError: rows are not whole vectors, or more bytes are requested than a row has.
        """
        if self.row_bytes % 16 or self.taken_bytes % 16:
            raise ValueError(f"{self}: rows and the bytes used of them must be multiples of 16 bytes")
        if not 0 <= self.taken_bytes <= self.row_bytes:
            raise ValueError(f"{self.taken_bytes} bytes do not fit into a row of {self.row_bytes}")


NO_WEIGHTS = NextWeights(num_rows=0, row_bytes=0, taken_bytes=0)


@dataclass(frozen=True, kw_only=True)
class AbortedAttention:
    """The first wait that expired, and what it was for. Rows that its launch could not finish are NaN."""

    cta: int
    #: Number of the CTA's task.
    task: int
    #: `Waited` in args_attention.cuh.
    waited: int
    #: Warp of the CTA; for a wrong number of arrivals, that number.
    warp: int
    #: Parity of the barrier; for a wrong number of arrivals, the expected number.
    parity: int

    def __str__(self) -> str:
        if self.waited == _ARRIVALS:
            what = f"{self.warp} arrivals of spans, but a launch has {self.parity}"
            return f"CTA {self.cta} found {what}, in its task {self.task}: did a length change during a launch?"
        if self.waited == _LENGTHS:
            return f"CTA {self.cta} found that CTAs have read different lengths: did one change during a launch?"
        who = f"warp {self.warp} of CTA {self.cta}"
        return f"{who} stopped waiting for {_WAITED[self.waited]}, in its task {self.task}"


def aborted_launch(words: Sequence[int]) -> AbortedAttention | None:
    """The abort that the `STATUS_WORDS` words record; None if no wait has expired."""
    found = (signed(word) for word in words[ABORT_WORD : ABORT_WORD + _ABORT_WORDS])
    raised, task, waited, warp, parity, cta = found
    if raised == 0:
        return None
    return AbortedAttention(cta=cta, task=task, waited=waited, warp=warp, parity=parity)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The layout of pages and their heads in a tensor map; a contiguous cache has one page per sequence."""

    num_pages: int
    rows_per_page: int
    rows_per_head: int
    lines_per_head: int

    @classmethod
    def of(cls, op: DecodeAttention, paged: PagedCache | None) -> _Rows:
        num_pages, tokens = (op.sequences, op.max_length) if paged is None else (paged.num_pages, paged.page_tokens)
        if paged is None or paged.heads_first:
            return cls(num_pages=num_pages, rows_per_page=op.kv_heads * tokens, rows_per_head=tokens, lines_per_head=0)
        lines = op.head_dim // _LINE_DIMS
        return cls(num_pages=num_pages, rows_per_page=tokens, rows_per_head=0, lines_per_head=lines)


def box_tokens(tiling: AttentionTiling, paged: PagedCache | None) -> int:
    """Tokens that one copy loads: a tile, or a page if pages are smaller."""
    return tiling.tile_tokens if paged is None else min(tiling.tile_tokens, paged.page_tokens)


def cache_map(op: DecodeAttention, tiling: AttentionTiling, paged: PagedCache | None = None) -> CacheMap:
    """The tensor map of K, and of V."""
    size, lines, rows = op.dtype.size_bytes, op.head_dim // _LINE_DIMS, _Rows.of(op, paged)
    row_heads = op.kv_heads if rows.lines_per_head else 1
    return CacheMap(
        dims=(_LINE_DIMS, rows.num_pages * rows.rows_per_page, lines * row_heads),
        strides_bytes=(row_heads * op.head_dim * size, _LINE_DIMS * size),
        box=(_LINE_DIMS, box_tokens(tiling, paged), lines),
    )


def workspace_words(plan: AttentionPlan, schedule: AttentionSchedule) -> tuple[int, int]:
    """Numbers of 32-bit words: of the arrival counters, zero before the first launch, and of the spans' partial
    sums."""
    floats = plan.num_slots * plan.num_spans * schedule.tiling_of(plan.op).partial_floats
    return plan.num_counters, floats if plan.num_spans > 1 else 4


@functools.cache
def version() -> str:
    """12 hex digits that identify the code of an attention's device files, as `kernel_version` does for a product."""
    text = "".join(device_text(name) for name in ATTENTION_FILES)
    return hashlib.sha256(without_comments(text).encode()).hexdigest()[:12]


def bound_threads(tiling: AttentionTiling) -> int:
    """The number of threads for which an SM's registers must suffice: more than a CTA has, if the kernel can do with
    fewer registers. Then warps of the next launch fit next to it. If the multiplying warps also finish tasks, some
    kernels would spill."""
    needed = max(num_math_registers(tiling), num_summing_registers(tiling))
    is_roomy = needed <= _ROOMY_REGISTERS and tiling.finish_warps > 0
    return max(tiling.num_threads, _ROOMY_THREADS if is_roomy else 0)


def render_attention(
    tiling: AttentionTiling,
    dtype: Dtype,
    *,
    form: AttentionForm = PLAIN,
    traced_tasks: int = 0,
    bounded: bool = True,
    lengths_once: bool = False,
) -> str:
    """The source of one attention kernel, the same for every number of sequences, heads, tokens and pages. It stamps
    the first `traced_tasks` tasks of each CTA; a kernel that stamps is never timed. Waits that are not `bounded`
    are only for measuring the cost of the bounds. With `lengths_once`, one warp of a CTA reads the lengths, even if
    two warps request."""
    config = f"""#define TUNER_ATTENTION_CONFIG
constexpr int kHeadDim = {tiling.head_dim};
constexpr int kColumns = {tiling.columns};
constexpr int kLiveColumns = {tiling.kept_columns};
constexpr int kTileTokens = {tiling.tile_tokens};
constexpr int kStages = {tiling.num_stages};
constexpr int kMathWarps = {tiling.math_warps};
constexpr int kFinishWarps = {tiling.finish_warps};
constexpr bool kByCopyEngine = {str(tiling.engine is AttentionEngine.TMA).lower()};
constexpr int kCluster = {tiling.cluster};
constexpr int kPartsAtOnce = {tiling.parts_at_once};
constexpr int kBoxTokens = {box_tokens(tiling, form.paged)};
constexpr bool kIsPaged = {str(form.paged is not None).lower()};
constexpr bool kHasWindow = {str(form.window is not None).lower()};
constexpr bool kHasSoftCap = {str(form.soft_cap is not None).lower()};
constexpr bool kBoundsWaits = {str(bounded).lower()};
constexpr bool kLengthsOnce = {str(lengths_once).lower()};
constexpr int kTracedTasks = {traced_tasks};
constexpr int kBoundThreads = {bound_threads(tiling)};
#define TUNER_ATTENTION_CLUSTER {f"__cluster_dims__({tiling.cluster}, 1, 1)" if tiling.cluster > 1 else ""}
"""
    texts = [f"// ---- config.cuh\n{config_types()}"]
    for name in (*_FIRST_FILES, COPIES[tiling.engine], *_LAST_FILES):
        before, default, after = with_rows(inlined(name), dtype.row).partition("#ifndef TUNER_ATTENTION_CONFIG\n")
        if default:
            before, after = before + config, after.partition("#endif\n")[2]
        texts.append(f"// ---- {name}\n{before}{after}")
    return "\n".join(texts)


def source_of(
    op: AttentionOp, schedule: AttentionSchedule, dtype: Dtype | None = None, *, traced_tasks: int = 0
) -> str:
    """The source of an op's kernel, for the element type of its shape."""
    return render_attention(schedule.tiling_of(op.shape), op.shape.dtype, form=op.form, traced_tasks=traced_tasks)


def next_weights_of(workload: Workload, index: int, schedule: AttentionSchedule) -> NextWeights:
    """The part of the next weights that the launch of attention `index` prefetches; all zeros if there is none."""
    reader = workload.reader_of(workload.launch_ops[index])
    row_bytes = reader.k * reader.weight_bits(workload.dtype) // 8 if reader else 0
    taken_bytes = schedule.taken_bytes(row_bytes)
    if reader is None or not taken_bytes:
        return NO_WEIGHTS
    return NextWeights(
        num_rows=reader.weight_rows,
        row_bytes=row_bytes,
        taken_bytes=taken_bytes,
        early=schedule.next_early,
    )


def form_numbers(op: DecodeAttention, form: AttentionForm) -> dict[str, int]:
    """The parameter's numbers for pages and window, in order."""
    rows = _Rows.of(op, form.paged)
    return {
        "rows_per_page": rows.rows_per_page,
        "rows_per_head": rows.rows_per_head,
        "lines_per_head": rows.lines_per_head,
        "page_shift": form.paged.page_tokens.bit_length() - 1 if form.paged else 0,
        "max_pages": form.paged.pages_of(op) if form.paged else 0,
        "num_pages": rows.num_pages,
        "window": form.window or 0,
    }


def cap_numbers(op: DecodeAttention, form: AttentionForm) -> dict[str, float]:
    """The soft cap in units of unscaled scores, and the factor in its exp2; zeros if there is no cap."""
    cap = form.soft_cap / op.score_scale if form.soft_cap else 0.0
    return {"cap": cap, "tanh_scale_log2": 2 * math.log2(math.e) / cap if cap else 0.0}
