"""The attention of transformers' own Llama, and the projection after it, computed by a pack's kernels.

    tuner-client tune-model config.json --dtype bf16 --m 1 --context 1024 -o llama.tunerpack

    llama_attention.replace_attentions(model, runtime.load("llama.tunerpack"), [(1, 1024)])

It implements transformers' attention interface with `torch.ops.tuner.attention_proj`, so torch.compile can compile the
whole model. It is for decode steps with a static cache: one new token per sequence, and no left padding. The model is
in `examples/llama_decode.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface, LlamaForCausalLM

import tuner.runtime as runtime
from tuner.runtime import torch_attention

NAME = "tuner"


class Projected(torch.nn.Module):
    """Replaces o_proj, whose input is already projected; only holds its weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x` unchanged."""
        return x


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    position_ids: torch.Tensor,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Called by transformers: `query` [sequences, heads, 1, head_dim], `key` and `value` the whole cache."""
    sequences, heads, new_tokens, head_dim = query.shape
    lengths = (position_ids[:, -1] + 1).to(torch.int32)
    rows = query.transpose(1, 2).reshape(sequences * new_tokens, heads * head_dim)
    y = torch.ops.tuner.attention_proj(rows, key, value, lengths, None, module.o_proj.weight, True, scaling, 0, 0.0)
    return y.view(sequences, new_tokens, -1), None


def replace_attentions(
    model: LlamaForCausalLM, pack: runtime.Pack | None, sizes: Sequence[tuple[int, int]] = ()
) -> None:
    """Replaces each attention and its projection with the operator. `sizes`: pairs of sequences and cache rows.

    Raises:
        for one of `sizes`, the pack uses the library, which is transformers' own attention.
    """
    config = model.config
    for sequences, length in sizes:
        attention = pack and pack.attention(
            sequences=sequences,
            length=length,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=str(model.dtype).removeprefix("torch."),
            d_out=config.hidden_size,
        )
        if attention is None or attention.op["max_length"] != length:
            raise RuntimeError(f"the pack has no kernels for {sequences} sequences in a cache of {length} rows")
        torch_attention.register(attention)
    for layer in model.model.layers:
        if layer.self_attn.o_proj.bias is not None:
            raise RuntimeError("o_proj has a bias, which the kernels do not support")
        layer.self_attn.o_proj = Projected(layer.self_attn.o_proj.weight.detach())
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)
