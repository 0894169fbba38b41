"""Ops of real models by name, in the form of clients' requests."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.asked import op_of
from tuner.core.problem.decoder import MODELS, block_products, shared_model
from tuner.core.problem.workload import Dtype, Workload, WorkloadKind
from tuner.ops.attention.asked import DecoderAttention, DecoderLayer, LayerRun, projected
from tuner.ops.attention.op import AttentionOp, Lengths
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.gemm.asked import DecoderBlock, Run

__all__ = ["MODELS", "LayerRun", "Run", "attention_pair", "decoder_attention", "decoder_block", "decoder_layer"]


def attention_pair(
    shape: DecodeAttention, *, d_out: int | None, lengths: Lengths = Lengths.FULL, form: AttentionForm = PLAIN
) -> Workload:
    """Decode attention, followed by a product with `d_out` columns if given."""
    return projected(AttentionOp(name="attention", shape=shape, lengths=lengths, form=form), d_out)


def decoder_block(model: str, *, has_reduce: bool = True, **asked: Any) -> Workload:
    """The ops between two attentions, or a run of them.

    Args:
        model: the model's name.
        has_reduce: whether ranks' results must be added up. False gives a rank's block without the all-reduces, which
            computes nothing useful and is only timed.
        asked: the fields of `DecoderBlock`.
    """
    if has_reduce or asked.get("run", Run.BLOCK) is not Run.BLOCK:
        return DecoderBlock(model=model, **asked).to_workload()
    products = block_products(shared_model(model, asked["tp"]), asked["tp"], in_runs=False).values()
    dtype = asked.get("dtype", Dtype.FP16)
    return Workload(kind=WorkloadKind.CHAIN, ops=tuple(op_of(op, asked["m"], dtype) for op in products), dtype=dtype)


def decoder_attention(model: str, **asked: Any) -> Workload:
    """The model's attention, followed by o_proj."""
    return DecoderAttention(model=model, **asked).to_workload()


def decoder_layer(model: str, **asked: Any) -> Workload:
    """A decode step of a layer, or a run of its ops."""
    return DecoderLayer(model=model, **asked).to_workload()
