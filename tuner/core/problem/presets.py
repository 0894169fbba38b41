"""Chains of real models by name: what lies between two attentions of a decoder layer, and an attention itself.

o_proj adds the residual stream. gate_up norms that and multiplies the activated gate with the up projection. down adds
the stream again. qkv norms it for the next layer. All norms' weights are folded into the weights that follow.

With tensor parallelism each rank has a share of every weight. Then an all-reduce adds up what the ranks' o_proj, and
their down, have made, and the residual is added to the sum. No kernel here reduces over ranks, so a rank runs what lies
between two such sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tuner.core.problem.rotary import Rotary
from tuner.core.problem.workload import Activation, Dtype, GemmOp, Op, Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.ops.attention.form import PLAIN, AttentionForm, form_for
from tuner.ops.attention.op import AttentionOp, Lengths
from tuner.ops.attention.shape import DecodeAttention


@dataclass(frozen=True, kw_only=True)
class DecoderModel:
    """The sizes of a decoder layer."""

    #: Columns of the residual stream.
    hidden: int
    #: Columns of the gated intermediate.
    intermediate: int
    #: Heads of queries, and of keys and of values.
    num_heads: int
    num_kv_heads: int
    #: Columns of a head.
    head_size: int
    #: Of its norms.
    eps: float
    #: Whether q, k and v add a bias.
    qkv_bias: bool = False


#: Source: the models' config.json as their authors published them.
MODELS: Mapping[str, DecoderModel] = {
    "llama3-8b": DecoderModel(
        hidden=4096, intermediate=14336, num_heads=32, num_kv_heads=8, head_size=128, eps=1e-5
    ),
    "llama3-70b": DecoderModel(
        hidden=8192, intermediate=28672, num_heads=64, num_kv_heads=8, head_size=128, eps=1e-5
    ),
    "qwen2.5-7b": DecoderModel(
        hidden=3584, intermediate=18944, num_heads=28, num_kv_heads=4, head_size=128, eps=1e-6, qkv_bias=True
    ),
}  # fmt: skip


class Run(StrEnum):
    """Neighbouring ops of a decoder block."""

    #: All four.
    BLOCK = "block"
    #: o_proj alone, in front of an all-reduce.
    O_PROJ = "o_proj"
    #: Norm, gate_up and down, between two of them.
    MLP = "mlp"
    #: Norm and qkv, behind one.
    QKV = "qkv"


class LayerRun(StrEnum):
    """A decoder layer from its attention or its qkv on, or neighbouring ops of it."""

    #: All of it: attention, o_proj, gate_up, down, and the next layer's qkv.
    LAYER = "layer"
    #: All of it, and its own qkv: norm, qkv, attention, o_proj, gate_up, down.
    FROM_QKV = "from_qkv"
    #: Norm, qkv, attention and o_proj, between two all-reduces.
    QKV_ATTENTION = "qkv_attention"
    #: Attention and o_proj, in front of an all-reduce.
    ATTENTION = "attention"
    #: Norm, gate_up and down, between two of them.
    MLP = "mlp"
    #: Norm and qkv, behind one.
    QKV = "qkv"


#: Runs that begin with the qkv whose queries their attention reads, and whose keys and values are in its cache.
_BEHIND_QKV = (LayerRun.FROM_QKV, LayerRun.QKV_ATTENTION)
#: Runs that an all-reduce stands in, where ranks share the layer.
_REDUCED = (LayerRun.LAYER, LayerRun.FROM_QKV)

#: Names of models whose attention norms queries and keys.
_NORMS_QUERIES = ("qwen3",)


def attention_pair(
    shape: DecodeAttention, *, d_out: int | None, lengths: Lengths = Lengths.FULL, form: AttentionForm = PLAIN
) -> Workload:
    """Decode attention, and behind it a product with `d_out` columns where that is given."""
    attention = AttentionOp(name="attention", shape=shape, lengths=lengths, form=form)
    ops: tuple[Op, ...] = (attention,)
    if d_out is not None:
        ops += (GemmOp(name="o_proj", m=attention.m, n=d_out, k=attention.n, source="attention"),)
    return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=shape.dtype)


def decoder_attention(
    model: str,
    *,
    sequences: int,
    max_length: int,
    new_tokens: int = 1,
    tp: int = 1,
    projection: bool = True,
    lengths: Lengths = Lengths.FULL,
    dtype: Dtype = Dtype.FP16,
    **form: Any,
) -> Workload:
    """The attention of `model` on one of `tp` ranks, and behind it o_proj where `projection`; `form` is for `form_for`.

    Raises:
        InvalidInput: the model is unknown, cannot be shared among so many ranks, or a size is out of its range.
    """
    sizes = _sizes_of(model)
    _check_shared(model, sizes, tp)
    shape = DecodeAttention(
        sequences=sequences,
        kv_heads=sizes.num_kv_heads // tp,
        query_heads=sizes.num_heads // sizes.num_kv_heads,
        head_dim=sizes.head_size,
        max_length=max_length,
        new_tokens=new_tokens,
        dtype=dtype,
    )
    d_out = sizes.hidden if projection else None
    return attention_pair(shape, d_out=d_out, lengths=lengths, form=form_for(shape, **form))


def decoder_layer(
    model: str,
    *,
    sequences: int,
    max_length: int,
    new_tokens: int = 1,
    tp: int = 1,
    lengths: Lengths = Lengths.FULL,
    dtype: Dtype = Dtype.FP16,
    run: LayerRun = LayerRun.LAYER,
    rotary: bool = True,
    page_tokens: int | None = None,
    **form: Any,
) -> Workload:
    """A decode step of a layer of `model` from its attention on to the next layer's qkv, from its own qkv on, or a run
    of it, on one of `tp` ranks. With `rotary` qkv turns queries and keys, and writes keys and values to the cache: its
    own attention's, or the next layer's; else a kernel in front of the attention does, which is no op. `page_tokens`
    and `form` are for `form_for`.

    Raises:
        InvalidInput: as `decoder_attention` and `decoder_block`; or the whole layer is asked for although an all-reduce
            stands in it; or a kernel that is no op stands behind its own qkv.
    """
    sizes, rows = _sizes_of(model), sequences * new_tokens
    _check_shared(model, sizes, tp)
    if tp > 1 and run in _REDUCED:
        problem = f"at tp {tp} an all-reduce stands behind o_proj and behind down, and no kernel here does one"
        raise InvalidInput("run", problem, "use qkv_attention, attention, mlp or qkv, the runs between them, or tp 1")
    if run in _BEHIND_QKV and not rotary:
        problem = "between qkv and its attention a kernel would write to the cache, which is no op"
        raise InvalidInput("rotary", problem, "leave it true, or tune qkv and what begins with the attention apart")
    heads = Rotary(
        heads=sizes.num_heads // tp,
        kv_heads=sizes.num_kv_heads // tp,
        head_dim=sizes.head_size,
        max_length=max_length,
        new_tokens=new_tokens,
        page_tokens=page_tokens,
        heads_first=form.get("heads_first", True),
    )
    if run in (LayerRun.MLP, LayerRun.QKV):
        return _turned(decoder_block(model, m=rows, tp=tp, dtype=dtype, run=Run(str(run))), heads if rotary else None)
    sized: dict[str, Any] = {
        "sequences": sequences,
        "max_length": max_length,
        "new_tokens": new_tokens,
        "lengths": lengths,
    }
    attention = decoder_attention(model, **sized, tp=tp, dtype=dtype, page_tokens=page_tokens, **form)
    if run is LayerRun.ATTENTION:
        return attention
    if run in _BEHIND_QKV:
        (qkv,) = _turned(decoder_block(model, m=rows, tp=tp, dtype=dtype, run=Run.QKV), heads).tile_ops
        behind = attention.tile_ops
        if run is LayerRun.FROM_QKV:
            o_proj, up, down, _ = decoder_block(model, m=rows, tp=tp, dtype=dtype).tile_ops
            behind = (o_proj, up, replace(down, is_output=False))
        (reading,) = (replace(one, source=qkv.name) for one in attention.launch_ops)
        return replace(attention, ops=(qkv, reading, *behind))
    block = _turned(decoder_block(model, m=rows, tp=tp, dtype=dtype), heads if rotary else None)
    return replace(attention, ops=(*attention.launch_ops, *block.ops))


def _turned(workload: Workload, rotary: Rotary | None) -> Workload:
    """With a `rotary`, and as many pairs, in the op called qkv, where there is one."""
    if rotary is None:
        return workload
    ops = (replace(op, n=rotary.num_pairs, rotary=rotary) if op.name == "qkv" else op for op in workload.tile_ops)
    return replace(workload, ops=tuple(ops))


def _sizes_of(model: str) -> DecoderModel:
    if model.startswith(_NORMS_QUERIES):
        problem = f"{model} norms its queries and keys between qkv and the attention, and no kernel here does"
        raise InvalidInput("model", problem, f"use one of {', '.join(MODELS)}")
    sizes = MODELS.get(model)
    if sizes is None:
        raise InvalidInput("model", f"no model is called {model!r}", f"use one of {', '.join(MODELS)}")
    return sizes


def _check_shared(model: str, sizes: DecoderModel, tp: int) -> None:
    shared = {"key and value heads": sizes.num_kv_heads, "intermediate columns": sizes.intermediate}
    for what, count in shared.items():
        if tp < 1 or count % tp:
            divisors = ", ".join(str(n) for n in range(1, sizes.num_kv_heads + 1) if sizes.num_kv_heads % n == 0)
            raise InvalidInput("tp", f"{tp} ranks cannot share the {count} {what} of {model}", f"use {divisors}")


def decoder_block(
    model: str,
    *,
    m: int,
    tp: int = 1,
    dtype: Dtype = Dtype.FP16,
    run: Run = Run.BLOCK,
    has_reduce: bool = True,
) -> Workload:
    """The ops between two attentions of `model`, or a run of them, for `m` rows on one of `tp` ranks.

    Args:
        has_reduce: that ranks' results must be added up. False gives the block of a rank as if that were not so, which
            computes nothing useful, and is there to be timed.

    Raises:
        InvalidInput: the model is unknown, cannot be shared among so many ranks, or the whole block is asked for
            although an all-reduce stands in it.
    """
    sizes = _sizes_of(model)
    _check_shared(model, sizes, tp)
    if tp > 1 and run is Run.BLOCK and has_reduce:
        problem = f"at tp {tp} an all-reduce stands behind o_proj and behind down, and no kernel here does one"
        raise InvalidInput("run", problem, "use o_proj, mlp or qkv, the runs between them, or tp 1")
    adds = run is Run.BLOCK  # else after the all-reduce, or on the way into the next run
    d, inner = sizes.hidden, sizes.intermediate // tp
    heads, qkv = sizes.num_heads * sizes.head_size // tp, (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_size
    stream, summed = ("o_proj", "down") if run is Run.BLOCK else ("residual", "residual")
    o_proj = GemmOp(
        name="o_proj", m=m, n=d, k=heads, source="attention", residual=adds, residual_source="residual" if adds else ""
    )
    up = GemmOp(
        name="gate_up", m=m, n=inner, k=d, source=stream, gated=True, activation=Activation.SILU, norm=stream,
        eps=sizes.eps,
    )  # fmt: skip
    down = GemmOp(
        name="down", m=m, n=d, k=inner, source="gate_up", residual=adds, residual_source=stream if adds else "",
        is_output=adds,
    )  # fmt: skip
    norm = GemmOp(name="qkv", m=m, n=qkv // tp, k=d, source=summed, norm=summed, eps=sizes.eps, bias=sizes.qkv_bias)
    ops = {Run.BLOCK: (o_proj, up, down, norm), Run.O_PROJ: (o_proj,), Run.MLP: (up, down), Run.QKV: (norm,)}
    return Workload(kind=WorkloadKind.CHAIN, ops=ops[run], dtype=dtype)
