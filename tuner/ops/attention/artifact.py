"""The launch recipe of an attention in a manifest: kernel, parameter, plan, workspace, and what a caller must give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.core.plan.header import MOST_QUEUES
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import attention_plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.limits import Limits
from tuner.ops.attention.append import render_append
from tuner.ops.attention.launchable import AttentionLaunchable
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans import attention_digest
from tuner.ops.attention.schedule import MOST_PORTABLE_CLUSTER, AttentionEngine, AttentionSchedule
from tuner.ops.attention.source import (
    ABORT_WORD,
    ARGS_ALIGNMENT,
    STATUS_WORDS,
    cache_map,
    cap_numbers,
    form_numbers,
    next_weights_of,
    source_of,
    workspace_words,
)
from tuner.ops.attention.tasks import AttentionPlan
from tuner.workers.builder.nvrtc import Built
from tuner.workers.source.launch_args import MAP_BYTES

#: Bytes of a task in the table, and of the fields in front of the first tasks.
_TASK_BYTES = 8
_CACHES = ("keys", "values")
_WORKSPACE_ALIGNMENT = 256
_LENGTHS = (
    "int32 of each sequence, new tokens included, read when a launch runs: 0 to max_length. A sequence of length 0 "
    "gets zeros. What lies behind a length in the cache may be anything. A longer one is read as max_length, and told "
    "in the words `refused`. A length must not change while the launch runs: CTAs read it one by one, and may abort"
)
_ABORT = (
    "raised is 1 where a wait has lasted too long. Rows that the launch could not finish are NaN. Each later launch "
    "gives NaN, until the first zero_bytes of the workspace are zeroed, while no launch is under way"
)
_CACHE = (
    "{shape}. The new tokens' keys and values are in it before the launch, as the last ones of each length. It is read "
    "behind the programmatic wait, and never written"
)
_WRITTEN_CACHE = (
    "{shape}. The launch of {writer} writes the new tokens' keys and values to it, as the last ones of each length. It "
    "is read behind the programmatic wait. The next run's launch of {writer} writes to it behind a wait of its own, "
    "when this launch has ended"
)
_CONTIGUOUS = "[sequences, kv_heads, max_length, head_dim], contiguous"
_HEADS_FIRST = "[num_pages, kv_heads, page_tokens, head_dim], whose pages a table gives to sequences"
_TOKENS_FIRST = "[num_pages, page_tokens, kv_heads, head_dim], whose pages a table gives to sequences"
_PAGES = (
    "int32 page numbers of each sequence, read when a launch runs: 0 to num_pages - 1. The number of a page that holds "
    "no token of a length is not read. A page that is not there is read as zeros, and told in the words `refused`"
)
_NUM_PAGES = "a cache may have another number of pages: give it as the parameter's num_pages"
_NUM_PAGES_OF_MAPS = f"{_NUM_PAGES}, and that number times rows_per_page as dims[1] of both tensor maps"


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """What an artifact holds of one attention."""

    workload: Workload
    gpu: Gpu
    index: int
    schedule: AttentionSchedule
    plan: AttentionPlan
    #: Digest of its proof, hex.
    proof: str
    source: str
    #: None where nothing was compiled.
    launchable: AttentionLaunchable | None = None
    #: Of the kernel that may go in front; None where nothing was compiled.
    append: Built | None = None
    #: How long one wait may last.
    spin_limit_cycles: int = Limits.spin_limit_cycles

    @property
    def op(self) -> AttentionOp:
        """What it computes."""
        return self.workload.launch_ops[self.index]

    @property
    def takes_append(self) -> bool:
        """Whether there is a kernel that may go in front: where no product makes the queries."""
        return self.workload.op_index(self.op.source) is None

    @property
    def files(self) -> dict[str, bytes]:
        """By name."""
        name = f"attention{self.index}"
        files = {
            f"{name}.cu": self.source.encode(),
            f"{name}_tasks.bin": self.plan.tasks.astype("<i4").tobytes(),
            f"{name}_queues.bin": self.plan.queues.astype("<i4").tobytes(),
        }
        if self.takes_append:
            files[f"{name}_append.cu"] = render_append(self.op.shape, self.op.form.paged).encode()
            files |= {f"{name}_append.cubin": self.append.cubin} if self.append else {}
        return files | ({f"{name}.cubin": self.launchable.cubin} if self.launchable else {})


def attention_kernels(
    workload: Workload,
    gpu: Gpu,
    candidate: Candidate,
    launchables: Sequence[AttentionLaunchable] = (),
    appends: Sequence[Built] = (),
    *,
    spin_limit_cycles: int = Limits.spin_limit_cycles,
) -> tuple[AttentionKernel, ...]:
    """Of each attention of a candidate's; `launchables` are their builds, and `appends` those of the kernels that may
    go in front, where something was compiled.

    Raises:
        IllegalSchedule, PlanError: the candidate is refused.
    """
    schedules = candidate.schedule.launch_ops if candidate.schedule else ()
    plans = attention_plans_for(workload, gpu, candidate)
    return tuple(
        AttentionKernel(
            workload=workload,
            gpu=gpu,
            index=index,
            schedule=schedule,
            plan=plan,
            proof=attention_digest(plan, schedule),
            source=source_of(workload.launch_ops[index], schedule),
            launchable=launchables[index] if launchables else None,
            append=appends[index] if appends else None,
            spin_limit_cycles=spin_limit_cycles,
        )
        for index, (schedule, plan) in enumerate(zip(schedules, plans, strict=True))
    )


def attention_tensors(workload: Workload) -> list[dict[str, Any]]:
    """Of each attention: queries, caches, lengths and results; row-major, contiguous."""
    found = []
    for op in workload.launch_ops:
        shape, is_read = op.shape, workload.reader_of(op) is not None
        cache = list(op.cache_shape)
        is_input = workload.op_index(op.source) is None  # else it is a product's output
        queries = [(op.source, "input", [op.m, op.n], str(workload.dtype))] if is_input else []
        for name, role, sizes, dtype in (
            *queries,
            (f"{op.name}.keys", "cache", cache, str(workload.dtype)),
            (f"{op.name}.values", "cache", cache, str(workload.dtype)),
            (f"{op.name}.lengths", "lengths", [shape.sequences], "int32"),
            *_page_table(op),
            (op.name, "intermediate" if is_read else "output", [op.m, op.n], str(workload.dtype)),
        ):
            found.append({"name": name, "role": role, "shape": sizes, "dtype": dtype, "alignment_bytes": 16})
    return found


def _page_table(op: AttentionOp) -> list[tuple[str, str, list[int], str]]:
    if op.form.paged is None:
        return []
    return [(op.operands[3], "pages", [op.shape.sequences, op.form.paged.pages_of(op.shape)], "int32")]


def attention_recipe(
    one: AttentionKernel, kernel: dict[str, Any], append: dict[str, Any] | None, *, programmatic: bool
) -> dict[str, Any]:
    """How it is launched; `kernel` says how it was compiled, `append` what may go in front of it. It goes in front of
    the launch of what reads it."""
    op, plan, tiling = one.op, one.plan, one.schedule.tiling_of(one.op.shape)
    name = f"attention{one.index}"
    reader = one.workload.reader_of(op)
    return {
        "op": op.name,
        "before": reader.name if reader else None,
        "kernel": kernel,
        "proof": one.proof,
        "tasks": f"{name}_tasks.bin",
        "queues": f"{name}_queues.bin",
        "grid": [plan.num_ctas, 1, 1],
        "block": [tiling.num_threads, 1, 1],
        "cluster": [tiling.cluster, 1, 1],
        "allows_non_portable_cluster": tiling.cluster > MOST_PORTABLE_CLUSTER,
        "cooperative": False,
        "needs_all_ctas": False,
        "programmatic_dependent_launch": programmatic,
        "dynamic_smem_bytes": tiling.smem_bytes,
        "parameter": attention_parameter(one),
        "tensor_maps": [_tensor_map(one, operand) for operand in _mapped(one)],
        "first_tasks": first_task_bytes(plan).hex(),
        "workspace": _workspace(one),
        "lengths": {"tensor": f"{op.name}.lengths", "max": op.shape.max_length, "meaning": _LENGTHS},
        **_pages(one),
        "cache": _cache_meaning(one.workload, op),
        **({} if append is None else {"append": append}),
        "stream": 0,
    }


def _cache_meaning(workload: Workload, op: AttentionOp) -> str:
    if workload.turned_for == op:
        return _WRITTEN_CACHE.format(shape=_cache_words(op), writer=op.source)
    return _CACHE.format(shape=_cache_words(op))


def _cache_words(op: AttentionOp) -> str:
    if op.form.paged is None:
        return _CONTIGUOUS
    return _HEADS_FIRST if op.form.paged.heads_first else _TOKENS_FIRST


def _pages(one: AttentionKernel) -> dict[str, Any]:
    """Of a paged cache: its table, and the bounds of what stands there."""
    op, paged = one.op, one.op.form.paged
    if paged is None:
        return {}
    table = {
        "tensor": op.operands[3],
        "page_tokens": paged.page_tokens,
        "num_pages": paged.num_pages,
        "rows_per_page": form_numbers(op.shape, op.form)["rows_per_page"],
        "meaning": _PAGES,
        "num_pages_meaning": _NUM_PAGES_OF_MAPS if _mapped(one) else _NUM_PAGES,
    }
    return {"pages": table}


def first_task_bytes(plan: AttentionPlan) -> bytes:
    """Of each queue, as the parameter has them."""
    return plan.first_tasks.astype("<i4").tobytes() + bytes(_TASK_BYTES * (MOST_QUEUES - plan.num_queues))


def attention_parameter(one: AttentionKernel) -> dict[str, Any]:
    """The one by-value struct that the kernel takes, field by field; `AttentionArgs` in args_attention.cuh."""
    op, plan, workload = one.op, one.plan, one.workload
    reader, asked = workload.reader_of(op), next_weights_of(workload, one.index, one.schedule)
    weights = f"{reader.name}.w" if reader and asked.taken_bytes else ""
    fields: list[dict[str, Any]] = []
    size = 0

    def add(name: str, kind: str, num_bytes: int, meaning: str, **more: Any) -> None:
        nonlocal size
        fields.append({"name": name, "offset": size, "type": kind, "meaning": meaning, **more})
        size += num_bytes

    for operand in _CACHES:
        if operand in _mapped(one):
            add(f"{operand}_map", f"bytes[{MAP_BYTES}]", MAP_BYTES, "the encoded tensor map of that name")
        else:
            add(operand, "pointer", 8, f"cache of {operand}", tensor=f"{op.name}.{operand}")
    add("q", "pointer", 8, "queries", tensor=op.source)
    add("out", "pointer", 8, "results", tensor=op.name)
    add("lengths", "pointer", 8, "int32 of each sequence", tensor=f"{op.name}.lengths")
    add("tasks", "pointer", 8, "the file of that name on the device")
    add("queues", "pointer", 8, "the file of that name on the device")
    add("partials", "pointer", 8, "in the workspace")
    add("arrivals", "pointer", 8, "in the workspace")
    add("trace", "pointer", 8, "null: only a traced build writes there")
    table, what = op.operands[3:], "int32 of each sequence and page" if op.form.paged else "null: no pages"
    add("pages", "pointer", 8, what, tensor="".join(table))
    add("refused", "pointer", 8, "in the workspace")
    add("abort", "pointer", 8, "in the workspace: its abort_record")
    add("spin_limit_cycles", "int64", 8, "SM clock cycles that one wait may last", value=one.spin_limit_cycles)
    add("next_rows", "pointer", 8, "weights that the launch behind reads, or null", tensor=weights)
    numbers = {
        "next_num_rows": asked.num_rows,
        "next_row_bytes": asked.row_bytes,
        "next_taken_bytes": asked.taken_bytes,
        "next_is_early": int(asked.early),
        "kv_heads": op.shape.kv_heads,
        "query_heads": op.shape.query_heads,
        "new_tokens": op.shape.new_tokens,
        "num_blocks": plan.num_blocks,
        "max_length": op.shape.max_length,
        "span_tokens": plan.span_tokens,
        "num_spans": plan.num_spans,
        "arrivals_per_launch": plan.arrivals_per_launch,
    }
    for name, value in numbers.items():
        add(name, "int32", 4, str(value), value=value)
    scale = op.shape.score_scale * math.log2(math.e)
    add("scale_log2", "float32", 4, "scale of the scores times log2(e)", value=scale)
    add("speculative", "int32", 4, "whether first tiles are requested before a length is known",
        value=int(one.schedule.speculative))  # fmt: skip
    for name, value in form_numbers(op.shape, op.form).items():
        add(name, "int32", 4, str(value), value=value)
    cap = "of the soft cap" if op.form.soft_cap else "no soft cap"
    for name, number in cap_numbers(op.shape, op.form).items():
        add(name, "float32", 4, cap, value=number)
    meaning = "sequences whose tasks are assigned by their lengths; 0: the tables have the tasks"
    add("num_assigned", "int32", 4, meaning, value=plan.num_assigned)
    add("num_queues", "int32", 4, "clusters that have tasks", value=plan.num_queues)
    add("sequences", "int32", 4, "of the lengths", value=op.shape.sequences)
    num_bytes = _TASK_BYTES * MOST_QUEUES
    add("first_tasks", f"bytes[{num_bytes}]", num_bytes, "as the launch gives them, hexadecimal")
    alignment = ARGS_ALIGNMENT[one.schedule.engine]
    return {"size_bytes": -(-size // alignment) * alignment, "fields": fields}


def _mapped(one: AttentionKernel) -> tuple[str, ...]:
    """The caches that the copy engine reads, by a tensor map each."""
    return _CACHES if one.schedule.engine is AttentionEngine.TMA else ()


def _tensor_map(one: AttentionKernel, operand: str) -> dict[str, Any]:
    found = cache_map(one.op.shape, one.schedule.tiling_of(one.op.shape), one.op.form.paged)
    return {
        "name": f"{operand}_map",
        "tensor": f"{one.op.name}.{operand}",
        "data_type": one.workload.dtype.row.map_type.name,
        "dims": list(found.dims),
        "strides_bytes": list(found.strides_bytes),
        "box": list(found.box),
        "element_strides": [1] * len(found.dims),
        "interleave": "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "swizzle": "CU_TENSOR_MAP_SWIZZLE_128B",
        "l2_promotion": "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
        "oob_fill": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    }


def _workspace(one: AttentionKernel) -> dict[str, Any]:
    """Counters first, then what a launch refused, then what spans leave of their sums."""
    counters, floats = workspace_words(one.plan, one.schedule)
    arrivals, refused, partials = (
        -(-4 * num // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT for num in (counters, STATUS_WORDS, floats)
    )
    return {
        "arrivals": 0,
        "refused": arrivals,
        "partials": arrivals + refused,
        "bytes": arrivals + refused + partials,
        "zero_bytes": arrivals + refused,
        "alignment_bytes": _WORKSPACE_ALIGNMENT,
        "per": "stream: launches that may run at once need one each",
        "zero": "once, when it is allocated, and again after an abort; what lies from partials on need not be",
        "counters": "they only grow, no launch resets them",
        "refused_fields": ["kind", "sequence", "value", "end"],
        "abort_record": {
            "offset": arrivals + 4 * ABORT_WORD,
            "fields": ["raised", "task", "waited", "warp", "parity", "cta"],
            "meaning": _ABORT,
        },
    }
