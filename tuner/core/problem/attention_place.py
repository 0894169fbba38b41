"""Where an attention may stand among the products of a workload, and which of them writes to its cache."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gemm_op import GemmOp
from tuner.errors import InvalidInput


def check_attentions(ops: Sequence[GemmOp | AttentionOp], dtype: Dtype) -> None:
    """Whether attentions are of the workload's element type, and of the ops behind each the first one alone reads it, a
    product, as A alone.

    Raises:
        InvalidInput: what would be right.
    """
    attentions = [op for op in ops if isinstance(op, AttentionOp)]
    if other := next((op for op in attentions if op.shape.dtype is not dtype), None):
        problem = f"{other.name} is of {other.shape.dtype}, and the workload of {dtype}"
        raise InvalidInput("dtype", problem, "give all ops one element type")
    for first in attentions:
        for number, product in enumerate(ops[ops.index(first) + 1 :]):
            _check_behind(first, product, number)


def _check_behind(first: AttentionOp, product: GemmOp | AttentionOp, number: int) -> None:
    """Of the op of that number behind an attention."""
    fields = [read.field for read in product.reads if read.tensor == first.name]
    if fields == (["source"] if number == 0 else []):
        return
    what = f"names it as {' and '.join(fields)}" if fields else "does not read it"
    problem = f"{product.name} stands behind the attention {first.name}, and {what}"
    remedy = f"let the first product alone, and its source alone, be {first.name}; or tune them by themselves"
    raise InvalidInput("ops", problem, remedy)


def check_turned(products: Sequence[GemmOp], attentions: Sequence[AttentionOp]) -> None:
    """That at most one product is turned, and that nobody reads it but an attention of its own cache.

    Raises:
        InvalidInput: names the op, and what would be right.
    """
    turned = [op for op in products if op.rotary]
    if len(turned) > 1:
        problem = f"{turned[0].name} and {turned[1].name} both write to a cache, and a kernel has one such op"
        raise InvalidInput("ops", problem, "cut the chain between them, and tune each run by itself")
    for op in turned:
        if reader := next((one.name for one in products if op.name in one.tensors), None):
            problem = f"{reader} reads {op.name}, whose keys and values go to a cache"
            remedy = "let an attention behind it read its queries, or leave rotary out"
            raise InvalidInput("ops", problem, remedy)
        readers_of_queries = [attention for attention in attentions if attention.source == op.name]
        if len(readers_of_queries) > 1:
            names = " and ".join(attention.name for attention in readers_of_queries)
            problem = f"{names} read {op.name}, whose epilogue writes keys and values to the cache of one"
            raise InvalidInput("ops", problem, "give each attention a product of its own, or leave rotary out")
        for attention in readers_of_queries:
            _check_one_cache(op, attention)


def _check_one_cache(op: GemmOp, attention: AttentionOp) -> None:
    """That the attention reads the cache that the product writes to.

    Raises:
        InvalidInput: names the size of the attention that is another's.
    """
    rotary, shape = op.rotary, attention.shape
    assert rotary
    paged = attention.form.paged
    sizes = (
        ("page_tokens", None if paged is None else paged.page_tokens, rotary.page_tokens),
        ("heads_first", paged is None or paged.heads_first, rotary.heads_first),
        ("kv_heads", shape.kv_heads, rotary.kv_heads),
        ("heads", shape.kv_heads * shape.query_heads, rotary.heads),
        ("head_dim", shape.head_dim, rotary.head_dim),
        ("new_tokens", shape.new_tokens, rotary.new_tokens),
        ("max_length", shape.max_length, rotary.max_length),
        ("sequences", shape.sequences, rotary.num_sequences(op.m)),
    )
    for field, read, written in sizes:
        if read != written:
            here, there = (json.dumps(value) for value in (read, written))  # as requests spell them
            problem = f"is {here}, and {op.name}, whose queries and cache it reads, has {there}"
            raise InvalidInput(f"{attention.name}.{field}", problem, f"give both {there}, or both {here}")
