"""The attention of transformers' own Llama, and the projection after it, by the kernels of a pack.

    tuner-client tune-model config.json --dtype bf16 --m 1 --context 1024 -o llama.tunerpack

    llama_attention.replace_attentions(model, runtime.load("llama.tunerpack"), [(1, 1024)])

It is an attention of transformers' own interface, which calls `torch.ops.tuner.attention_proj`. So torch.compile takes
the model whole. It is for decode steps with a static cache: one new token of each sequence, and no padding in front.
`examples/llama_decode.py` has the model.
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
    """Takes the place of o_proj: what comes is projected already. It keeps the weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As it comes."""
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
    """As transformers calls it: `query` [sequences, heads, 1, head_dim], `key` and `value` the whole cache."""
    sequences, heads, new_tokens, head_dim = query.shape
    lengths = (position_ids[:, -1] + 1).to(torch.int32)
    rows = query.transpose(1, 2).reshape(sequences * new_tokens, heads * head_dim)
    y = torch.ops.tuner.attention_proj(rows, key, value, lengths, None, module.o_proj.weight, True, scaling, 0, 0.0)
    return y.view(sequences, new_tokens, -1), None


def replace_attentions(
    model: LlamaForCausalLM, pack: runtime.Pack | None, sizes: Sequence[tuple[int, int]] = ()
) -> None:
    """Puts the operator in place of each attention and its projection; `sizes` are sequences, and rows of the cache.

    Raises:
        RuntimeError: the pack leaves one to the library, which is transformers' own attention.
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
            raise RuntimeError("o_proj has a bias, and the kernels have none")
        layer.self_attn.o_proj = Projected(layer.self_attn.o_proj.weight.detach())
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)
