"""Workloads with an attention between products: one computes its queries, and others read its results."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.workload import Activation, Dtype, Workload, WorkloadKind
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.shapes.form import form_for
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.gemm.op import GemmOp

#: Sizes of the attention, and of the product before it that writes to its cache.
SIZES: dict[str, Any] = {"kv_heads": 2, "head_dim": 64, "max_length": 512, "new_tokens": 1}


def between(
    *,
    sequences: int = 4,
    hidden: int = 256,
    query_heads: int = 2,
    rotary: bool = True,
    norm: bool = True,
    num_behind: int = 1,
    dtype: Dtype = Dtype.FP16,
    sizes: dict[str, Any] | None = None,
    pages: dict[str, Any] | None = None,
) -> Workload:
    """[norm ->] qkv -> attention -> o_proj (+ the residual stream), and up to two more after it: norm -> gate_up, down.

    Without `rotary`, the preceding product computes only queries, and the cache was written earlier. `pages` are those
    of the cache, as `form_for` takes them.
    """
    given = SIZES | (sizes or {})
    shape = DecodeAttention(sequences=sequences, query_heads=query_heads, dtype=dtype, **given)
    attention = AttentionOp(name="attention", shape=shape, source="qkv", form=form_for(shape, **(pages or {})))
    heads = Rotary(heads=given["kv_heads"] * query_heads, **given, **(pages or {}))
    qkv = GemmOp(
        name="qkv",
        m=attention.m,
        n=heads.num_pairs if rotary else heads.query_columns,
        k=hidden,
        source="x",
        norm="x" if norm else "",
        rotary=heads if rotary else None,
    )
    m, inner = attention.m, 2 * hidden
    behind = (
        GemmOp(name="o_proj", m=m, n=hidden, k=attention.n, source="attention", residual=True, residual_source="x"),
        GemmOp(
            name="gate_up", m=m, n=inner, k=hidden, source="o_proj", norm="o_proj", gated=True,
            activation=Activation.SILU,
        ),
        GemmOp(name="down", m=m, n=hidden, k=inner, source="gate_up", residual=True, residual_source="o_proj"),
    )  # fmt: skip
    return Workload(
        kind=WorkloadKind.CHAIN,
        ops=(qkv, attention, *behind[:num_behind]),
        dtype=dtype,
    )


def two_attentions(*, sequences: int = 4, hidden: int = 256, max_length: int = 512) -> Workload:
    """q1 -> attention1 -> o1 (+ x) -> q2 -> attention2 -> o2 (+ o1); the caches were written earlier."""
    shape = DecodeAttention(sequences=sequences, query_heads=2, dtype=Dtype.FP16, **SIZES | {"max_length": max_length})
    ops, stream = list[GemmOp | AttentionOp](), "x"
    for layer in (1, 2):
        attention = AttentionOp(name=f"attention{layer}", shape=shape, source=f"q{layer}")
        m, width = attention.m, attention.n
        ops += [
            GemmOp(name=f"q{layer}", m=m, n=width, k=hidden, source=stream),
            attention,
            GemmOp(
                name=f"o{layer}", m=m, n=hidden, k=width, source=attention.name, residual=True, residual_source=stream
            ),
        ]
        stream = f"o{layer}"
    return Workload(kind=WorkloadKind.CHAIN, ops=tuple(ops))
