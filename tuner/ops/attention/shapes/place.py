"""Where a workload may have an attention among its ops, and which cache the attention reads."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tuner.core.problem.ops.op import LaunchOp, Op
from tuner.errors import InvalidInput
from tuner.ops.attention.shapes.form import AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention


def check_attention(op: LaunchOp, ops: Sequence[Op]) -> None:
    """Checks that only the first of the later ops reads the attention's output, and only as A.

    Raises:
        InvalidInput: the message says what is expected.
    """
    for number, behind in enumerate(ops[ops.index(op) + 1 :]):
        _check_behind(op, behind, number)


def _check_behind(op: LaunchOp, behind: Op, number: int) -> None:
    """Checks op `behind`, which has that number and comes after an attention."""
    fields = [read.field for read in behind.reads if read.tensor == op.name]
    if fields == (["source"] if number == 0 else []):
        return
    what = f"names it as {' and '.join(fields)}" if fields else "does not read it"
    problem = f"{behind.name} comes after the attention {op.name}, and {what}"
    remedy = f"let {op.name} be only the first product, and its source too; or tune them separately"
    raise InvalidInput("ops", problem, remedy)


def check_cache(op: LaunchOp, shape: DecodeAttention, form: AttentionForm, ops: Sequence[Op]) -> None:
    """Checks that an attention of this shape and form reads the cache of the op before it, if that op writes to one.

    Raises:
        InvalidInput: names the size of the attention that differs.
    """
    writer = next((one for one in ops if one.name in op.read_names), None)
    if writer is None or writer.written_cache is None:
        return
    readers = [one.name for one in ops if isinstance(one, LaunchOp) and writer.name in one.read_names]
    if len(readers) > 1:
        problem = (
            f"{' and '.join(readers)} read {writer.name}, which writes keys and values to the cache of one attention"
        )
        raise InvalidInput("ops", problem, "give each attention its own product, or leave rotary out")
    written, paged = writer.written_cache, form.paged
    sizes = (
        ("page_tokens", None if paged is None else paged.page_tokens, written.page_tokens),
        ("heads_first", paged is None or paged.heads_first, written.heads_first),
        ("kv_heads", shape.kv_heads, written.kv_heads),
        ("heads", shape.kv_heads * shape.query_heads, written.heads),
        ("head_dim", shape.head_dim, written.head_dim),
        ("new_tokens", shape.new_tokens, written.new_tokens),
        ("max_length", shape.max_length, written.max_length),
        ("sequences", shape.sequences, written.num_sequences(writer.m)),
    )
    for field, read, there in sizes:
        if read != there:
            mine, its = (json.dumps(value) for value in (read, there))  # as spelled in requests
            problem = f"is {mine}, but {writer.name}, whose queries and cache it reads, has {its}"
            raise InvalidInput(f"{op.name}.{field}", problem, f"use {its} for both, or {mine} for both")
