"""Decoder layers of a model of transformers, from their norm on, by `torch.ops.tuner.decoder_layer`.

A replaced layer keeps its modules, which compute all steps but decode steps over a static cache that kernels support.
The weights of the norm before the MLP are multiplied into gate and up, in place. The qkv of the kernels has another
order of rows, so it is a second copy, into which the norm before it is multiplied. Weights cannot be loaded again.
"""

from __future__ import annotations

from typing import Any

import torch

from tuner.runtime import torch_layer
from tuner.runtime.models import attentions, mlps
from tuner.runtime.models.attentions import front_of
from tuner.runtime.models.steps import Steps, is_lengths

#: The layers of transformers whose whole computation is norm, qkv, rotary embedding, attention, o_proj, norm and gated
#: MLP, by their classes.
FAMILIES = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Phi3DecoderLayer", "Qwen2DecoderLayer"})


def reason_against(model: Any) -> str:
    """Why the operator cannot compute a model's layers; empty if it can."""
    from transformers import StaticCache

    inner: Any = getattr(model, "model", None)
    if not hasattr(inner, "layers") or not hasattr(inner, "rotary_emb"):
        return f"{type(model).__name__} is not a decoder of layers with one rotary embedding"
    if odd := next(filter(None, map(_reason_against, inner.layers)), ""):
        return odd
    rotary, head_dim = inner.rotary_emb, inner.layers[0].self_attn.head_dim
    if rotary.attention_scaling != 1.0 or rotary.rope_type in ("dynamic", "longrope"):
        return f"its rotary embedding is of type {rotary.rope_type}, which has a scale or depends on the length"
    if (rotated := 2 * rotary.inv_freq.numel()) != head_dim:
        return f"its rotary embedding turns {rotated} of {head_dim} elements of a head"
    if not hasattr(StaticCache(config=model.config, max_cache_len=1).layers[0], "cumulative_length"):
        return "static caches of this version of transformers do not have their length: use 5.24"
    return ""


def _reason_against(layer: Any) -> str:
    kind = type(layer).__name__
    if kind not in FAMILIES:
        return f"{kind} is not one of {', '.join(sorted(FAMILIES))}"
    if hasattr(layer, "tuner_qkv"):
        return "they run kernels already"
    if reason := attentions.reason_against(layer.self_attn) or mlps.reason_against(layer.mlp):
        return reason
    if mlps.activation_of(layer.mlp) != "silu":
        return "the activation of its MLP is not SiLU"
    if odd := [one for one in front_of(layer.self_attn) if type(one) is not torch.nn.Linear]:
        return f"one of its products is a {type(odd[0]).__name__}: quantised, or with an adapter"
    return ""


def replace(model: Any, steps: Steps) -> None:
    """Makes the layers use the operator for the sizes `steps.layers`. Their MLPs were replaced before."""
    for place, layer in enumerate(model.model.layers):
        Layer(layer, place, model.model.rotary_emb, steps).install()


class Layer:
    """The operator in a decoder layer."""

    def __init__(self, layer: Any, place: int, rotary: Any, steps: Steps) -> None:
        self._layer, self._place, self._rotary, self._steps = layer, place, rotary, steps
        self._plain = layer.forward

    def install(self) -> None:
        """Folds the norms, and makes the layer call this."""
        layer = self._layer
        with torch.no_grad():
            norm, after = layer.input_layernorm, layer.post_attention_layernorm
            rows = torch.cat([one.weight for one in front_of(layer.self_attn)]) * norm.weight
            # Buffers move with the layer, and are not in its state.
            layer.register_buffer("tuner_qkv", self._turned(rows), persistent=False)
            biases = [one.bias for one in front_of(layer.self_attn)]
            bias = None if biases[0] is None else self._turned(torch.cat(biases))
            layer.register_buffer("tuner_bias", bias, persistent=False)
            layer.mlp.merged.mul_(after.weight)
            after.weight.fill_(1)
        layer.register_load_state_dict_pre_hook(_refuse_to_load)
        layer.forward = self.forward

    def _turned(self, rows: torch.Tensor) -> torch.Tensor:
        return torch_layer.halves_first(rows.detach(), self._layer.self_attn.head_dim)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, *others: Any, **how: Any
    ) -> torch.Tensor:
        """Called by transformers: maps [sequences, new tokens, hidden] to the same shape."""
        cache = how.get("cache", how.get("past_key_values"))
        own = cache.layers[self._place] if attention_mask is not None and cache is not None else None
        if attention_mask is None or not is_lengths(attention_mask) or not self._is_step(own, len(hidden_states)):
            found: torch.Tensor = self._plain(hidden_states, attention_mask, *others, **how)
            return found
        assert own is not None
        own.cumulative_length.add_(1)  # as its `update` does
        layer = self._layer
        y: torch.Tensor = torch.ops.tuner.decoder_layer(
            hidden_states.reshape(len(hidden_states), -1), None, layer.tuner_qkv, layer.tuner_bias,
            self._rotary.inv_freq.float(), own.keys, own.values, attention_mask.view(-1), None,
            layer.self_attn.o_proj.weight, layer.mlp.merged, layer.mlp.down_proj.weight,
            layer.input_layernorm.variance_epsilon, True, True, layer.self_attn.scaling, 0, 0.0,
        )  # fmt: skip
        return y.view(hidden_states.shape)

    def _is_step(self, own: Any, sequences: int) -> bool:
        """Whether the operator computes a step over this cache of the layer."""
        if not getattr(own, "is_initialized", False) or not hasattr(own, "cumulative_length"):
            return False  # a cache that grows
        return self._steps.has(self._steps.layers, sequences, own.keys.shape[2])


def _refuse_to_load(*_: Any) -> None:
    raise RuntimeError("norms are folded into the weights of this layer: load weights before tuner.runtime.patch")
