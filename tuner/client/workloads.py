"""What a pair is of which a client asks: the workload, as a manifest names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.presets import LayerRun, Run, attention_pair, decoder_attention, decoder_block, decoder_layer
from tuner.core.problem.rotary import Rotary
from tuner.core.problem.workload import (
    DEFAULT_EPS,
    Activation,
    GemmOp,
    Workload,
    WorkloadKind,
    ffn_pair,
    independent_pair,
)
from tuner.ops.attention.form import form_for
from tuner.ops.attention.op import ATTENTION, AttentionOp, Lengths
from tuner.ops.attention.shape import DecodeAttention

Json = Mapping[str, Any]
_FORM = ("page_tokens", "heads_first", "window", "soft_cap")


def workload_of(pair: Json) -> Workload:
    """The workload of a pair, which is as `POST /jobs` takes it.

    Raises:
        InvalidInput: a size is out of its range.
        KeyError: a field is missing.
        ValueError: a field is none.
    """
    given: dict[str, Any] = {**pair, "dtype": Dtype(pair.get("dtype", Dtype.FP16))}
    kind, dtype = given.pop("kind"), given["dtype"]
    if kind == "ffn":
        return ffn_pair(**given | {"activation": Activation(given.get("activation", Activation.IDENTITY))})
    if kind == "independent":
        first, second = ((one["m"], one["n"], one["k"]) for one in (given["first"], given["second"]))
        return independent_pair(first, second, dtype=dtype)
    if kind == "chain":
        return _chain(given["m"], given["ops"], dtype)
    if kind == "decoder-block":
        return decoder_block(given.pop("model"), **given | {"run": Run(given.get("run", Run.BLOCK))})
    given["lengths"] = Lengths(given.get("lengths", Lengths.FULL))
    if kind == "decoder-attention":
        return decoder_attention(given.pop("model"), **given)
    if kind == "decoder-layer":
        return decoder_layer(given.pop("model"), **given | {"run": LayerRun(given.get("run", LayerRun.LAYER))})
    if kind != "attention":
        raise ValueError(f"{kind!r} is no kind of a pair")
    shape = _shape(given, dtype)
    return attention_pair(shape, d_out=given.get("d_out"), lengths=given["lengths"], form=_form(shape, given))


def _chain(m: int, ops: list[Json], dtype: Dtype) -> Workload:
    made = tuple(_attention(op, dtype) if op.get("op") == ATTENTION else _product(op, m) for op in ops)
    return Workload(kind=WorkloadKind.CHAIN, ops=made, dtype=dtype)


def _product(op: Json, m: int) -> GemmOp:
    given = {**op}
    rotary = Rotary(**given.pop("rotary")) if given.get("rotary") else None
    given["n"] = given["n"] // 2 if rotary else given["n"]
    residual, norm, eps = given.pop("residual", None), given.pop("norm", None), given.pop("eps", None)
    return GemmOp(
        **given
        | {
            "m": m,
            "activation": Activation(given.get("activation", Activation.IDENTITY)),
            "residual": residual is not None,
            "residual_source": residual or "",
            "norm": norm or "",
            "eps": DEFAULT_EPS if eps is None else eps,
            "rotary": rotary,
        }
    )


def _attention(op: Json, dtype: Dtype) -> AttentionOp:
    shape = _shape(op, dtype)
    lengths = Lengths(op.get("lengths", Lengths.FULL))
    source = op.get("source", "q")
    return AttentionOp(name=op["name"], source=source, lengths=lengths, shape=shape, form=_form(shape, op))


def _shape(given: Json, dtype: Dtype) -> DecodeAttention:
    return DecodeAttention(
        sequences=given["sequences"],
        kv_heads=given["kv_heads"],
        query_heads=given["heads"] // given["kv_heads"],
        head_dim=given["head_dim"],
        max_length=given["max_length"],
        new_tokens=given.get("new_tokens", 1),
        dtype=dtype,
        scale=given.get("scale"),
    )


def _form(shape: DecodeAttention, given: Json) -> Any:
    return form_for(shape, **{name: given[name] for name in _FORM if name in given})
