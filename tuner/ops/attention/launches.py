"""The launch of decode attention: its grid, and its parameter field by field; see `AttentionArgs` in
args_attention.cuh."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tuner.core.plan.op_launches import (
    ALIGNMENT_BYTES,
    Field,
    OpLaunch,
    OpLaunches,
    inline,
    null,
    number,
    pointer,
    room,
    spin_limit,
    table,
    tensor_map,
)
from tuner.core.plan.table.header import MOST_QUEUES
from tuner.core.problem.workload import Workload
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.ops.attention.schedule import AttentionEngine, AttentionSchedule
from tuner.ops.attention.source import (
    ABORT_WORD,
    ATTENTION_KERNEL,
    STATUS_WORDS,
    aborted_launch,
    cache_map,
    cap_numbers,
    form_numbers,
    next_weights_of,
    workspace_words,
)
from tuner.workers.source.refused import refused_launch

#: Bytes of a task in the table, and of the fields before the first tasks.
TASK_BYTES = 8
CACHES = ("keys", "values")


def launches_of(op: AttentionOp, schedule: AttentionSchedule, plan: AttentionPlan, workload: Workload) -> OpLaunches:
    """The launch. Its workspace has counters, then what a launch refused, then the partial sums of spans."""
    tiling, at = schedule.tiling_of(op.shape), workspace_of(plan, schedule)
    launch = OpLaunch(
        kernel=ATTENTION_KERNEL,
        num_ctas=plan.num_ctas,
        num_threads=tiling.num_threads,
        cluster=tiling.cluster,
        smem_bytes=tiling.smem_bytes,
        waits=True,
        num_tasks=len(plan.tasks),
        fields=tuple(_fields(op, schedule, plan, workload)),
    )
    return OpLaunches(
        launches=(launch,),
        workspace_bytes=at["bytes"],
        zero_bytes=at["partials"],
        status_words=STATUS_WORDS,
        status_at=at["refused"],
    )


def report_of(words: Sequence[int]) -> str:
    """The first invalid length or page that a launch has found, or else the first wait that expired."""
    return str(refused_launch(words) or aborted_launch(words) or "")


def workspace_of(plan: AttentionPlan, schedule: AttentionSchedule) -> dict[str, int]:
    """The offsets of the workspace's parts, and its size, in bytes."""
    counters, floats = workspace_words(plan, schedule)
    arrivals, refused, partials = (
        -(-4 * num // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for num in (counters, STATUS_WORDS, floats)
    )
    return {
        "arrivals": 0,
        "refused": arrivals,
        "abort": arrivals + 4 * ABORT_WORD,
        "partials": arrivals + refused,
        "bytes": arrivals + refused + partials,
    }


def mapped(schedule: AttentionSchedule) -> tuple[str, ...]:
    """The caches that the copy engine reads, each with a tensor map."""
    return CACHES if schedule.engine is AttentionEngine.TMA else ()


def first_task_bytes(plan: AttentionPlan) -> bytes:
    """First task of each queue, in the parameter's format."""
    return plan.first_tasks.astype("<i4").tobytes() + bytes(TASK_BYTES * (MOST_QUEUES - plan.num_queues))


def _fields(op: AttentionOp, schedule: AttentionSchedule, plan: AttentionPlan, workload: Workload) -> Iterator[Field]:
    of_map = cache_map(op.shape, schedule.tiling_of(op.shape), op.form.paged)
    for operand in CACHES:
        tensor = f"{op.name}.{operand}"
        if operand in mapped(schedule):
            yield tensor_map(f"{operand}_map", tensor, of_map.dims, of_map.strides_bytes, of_map.box)
        else:
            yield pointer(operand, tensor, f"cache of {operand}")
    yield pointer("q", op.source, "queries")
    yield pointer("out", op.name, "results")
    yield pointer("lengths", f"{op.name}.lengths", "int32 for each sequence")
    yield table("tasks", plan.tasks.astype("<i4").tobytes())
    yield table("queues", plan.queues.astype("<i4").tobytes())
    at = workspace_of(plan, schedule)
    yield room("partials", at["partials"])
    yield room("arrivals", at["arrivals"])
    yield null("trace", "null: only a traced build writes there")
    if op.form.paged:
        yield pointer("pages", op.operands[3], "int32 for each sequence and page")
    else:
        yield null("pages", "null: no pages")
    yield room("refused", at["refused"])
    yield room("abort", at["abort"], "in the workspace: its abort_record")
    yield spin_limit("spin_limit_cycles")
    yield from _numbers(op, schedule, plan, workload)
    yield inline("first_tasks", first_task_bytes(plan), "as passed to the launch, hexadecimal")


def _numbers(op: AttentionOp, schedule: AttentionSchedule, plan: AttentionPlan, workload: Workload) -> Iterator[Field]:
    reader, shape = workload.reader_of(op), op.shape
    asked = next_weights_of(workload, workload.launch_ops.index(op), schedule)
    weights = "weights that the next launch reads, or null"
    if reader and asked.taken_bytes:
        yield pointer("next_rows", f"{reader.name}.w", weights)
    else:
        yield null("next_rows", weights)
    yield number("next_num_rows", asked.num_rows)
    yield number("next_row_bytes", asked.row_bytes)
    yield number("next_taken_bytes", asked.taken_bytes)
    yield number("next_is_early", int(asked.early))
    for name in ("kv_heads", "query_heads", "new_tokens"):
        yield number(name, getattr(shape, name))
    yield number("num_blocks", plan.num_blocks)
    yield number("max_length", shape.max_length)
    for name in ("span_tokens", "num_spans", "arrivals_per_launch"):
        yield number(name, getattr(plan, name))
    scale = shape.score_scale * math.log2(math.e)
    yield number("scale_log2", scale, "float32", "scale of the scores times log2(e)")
    early = "whether first tiles are requested before a length is known"
    yield number("speculative", int(schedule.speculative), meaning=early)
    for name, value in form_numbers(shape, op.form).items():
        yield number(name, value)
    cap = "factor of the soft cap" if op.form.soft_cap else "no soft cap"
    for name, factor in cap_numbers(shape, op.form).items():
        yield number(name, factor, "float32", cap)
    assigned = "sequences whose tasks are assigned by their lengths; 0: the tables contain the tasks"
    yield number("num_assigned", plan.num_assigned, meaning=assigned)
    yield number("num_queues", plan.num_queues, meaning="clusters that have tasks")
    yield number("sequences", shape.sequences, meaning="of the lengths")
