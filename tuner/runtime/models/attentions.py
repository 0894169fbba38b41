"""Attentions of a model of transformers, with their projections, by `torch.ops.tuner.attention_proj`.

They keep their modules: only the projection's module is replaced, by one with the same parameter. It passes rows on
that are already projected, as long as the model uses this attention implementation.
"""

from __future__ import annotations

from typing import Any

import torch

from tuner.core.problem.dtype import UNSCALED
from tuner.runtime import torch_attention  # noqa: F401  (defines the operator)
from tuner.runtime.models.steps import PLAIN, Steps, as_mask, is_lengths
from tuner.runtime.pytorch.operands import name_of

#: The attentions of transformers whose scores have neither a window nor a cap, by their classes.
FAMILIES = frozenset(
    {"GemmaAttention", "LlamaAttention", "MistralAttention", "Phi3Attention", "Qwen2Attention", "Qwen3Attention"}
)
_DTYPES = {dtype.row.array_name for dtype in UNSCALED}


class Projection(torch.nn.Module):  # type: ignore[misc]
    """The projection after an attention, with its parameter: rows of the implementation `name` are projected."""

    def __init__(self, plain: Any, config: Any, name: str) -> None:
        super().__init__()
        self.weight, self._config, self._name = plain.weight, config, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [..., heads * head_dim] to [..., hidden]."""
        if self._config._attn_implementation == self._name:
            return x
        return torch.nn.functional.linear(x, self.weight)


def reason_against(attention: Any) -> str:
    """Why the operator cannot compute an attention with its projection; empty if it can."""
    kind, config = type(attention).__name__, attention.config
    if kind not in FAMILIES:
        return f"{kind} is not one of {', '.join(sorted(FAMILIES))}"
    of_all = getattr(config, "sliding_window", None)  # the modules of Mistral and Phi-3 do not have their window
    if (window := getattr(attention, "sliding_window", of_all)) is not None:
        return f"it has a window of {window} tokens, and a cache of its own"
    if config._attn_implementation != PLAIN:
        return f"the model uses attn_implementation={config._attn_implementation!r}: load it with {PLAIN!r}"
    projection = attention.o_proj
    if type(projection) is not torch.nn.Linear:
        return f"its projection is a {type(projection).__name__}: quantised, or with an adapter"
    if projection.bias is not None:
        return "its projection has a bias"
    if name_of(projection.weight.dtype) not in _DTYPES:
        return f"its weights are of {name_of(projection.weight.dtype)}, but kernels have {' or '.join(UNSCALED)}"
    return ""


def front_of(attention: Any) -> list[Any]:
    """The products before an attention: one for queries, keys and values, or one for each."""
    if hasattr(attention, "qkv_proj"):
        return [attention.qkv_proj]
    return [attention.q_proj, attention.k_proj, attention.v_proj]


def replace(model: Any, attentions: list[Any], steps: Steps) -> None:
    """Makes the model use the implementation `steps.name`, and these attentions the operator."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    for attention in attentions:
        attention.o_proj = Projection(attention.o_proj, attention.config, steps.name)
    AttentionInterface.register(steps.name, attend)
    AttentionMaskInterface.register(steps.name, steps.mask)
    model.set_attn_implementation(steps.name)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Called by transformers: `query` [sequences, heads, new tokens, head_dim], `key` and `value` the whole cache.
    Returns [sequences, new tokens, hidden] for a replaced projection, and otherwise the heads' rows."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    projection = module.o_proj if isinstance(getattr(module, "o_proj", None), Projection) else None
    if attention_mask is not None and is_lengths(attention_mask):
        if projection is not None:
            sequences, heads, _, head_dim = query.shape
            rows, lengths = query.transpose(1, 2).reshape(sequences, heads * head_dim), attention_mask.view(-1)
            scale = head_dim**-0.5 if scaling is None else scaling
            y = torch.ops.tuner.attention_proj(rows, key, value, lengths, None, projection.weight, True, scale, 0, 0.0)
            return y.view(sequences, 1, -1), None
        attention_mask = as_mask(attention_mask, key.shape[2])
    y, scores = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    if projection is not None:
        y = torch.nn.functional.linear(y.reshape(*y.shape[:2], -1), projection.weight)
    return y, scores
