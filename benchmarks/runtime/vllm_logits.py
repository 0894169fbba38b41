"""Logits of arms inside vLLM compared with the model's own in fp32: a Llama's or a Qwen 2's, from its config and
weights.

`vllm_arm.py` calls `compared` in the process of `stock`, which has the weights as they were loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

Json = dict[str, Any]


#: Cached logits by tokens, since the sequences of a smaller batch are the first ones of a larger batch.
_known: dict[tuple[int, ...], torch.Tensor] = {}


def reference(config: Mapping[str, Any], weights: Mapping[str, Any], tokens: torch.Tensor, first: int) -> torch.Tensor:
    """fp32 logits from position `first` on, [sequences, positions, words]; weights by vLLM's names.

    Raises:
        ValueError: the model's rotary embedding is scaled, which is not computed here.
    """
    if config.get("rope_scaling"):
        raise ValueError(f"rope_scaling is {config['rope_scaling']}: use a config without it")
    heads = config["num_attention_heads"]
    kv_heads, head_dim = config["num_key_value_heads"], config.get("head_dim") or config["hidden_size"] // heads
    eps, length = config.get("rms_norm_eps", 1e-6), tokens.shape[1]
    device = weights["model.norm.weight"].device
    powers = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    angles = torch.arange(length, device=device)[:, None] * config.get("rope_theta", 10000.0) ** -powers
    cos, sin = angles.cos(), angles.sin()

    def of(name: str) -> torch.Tensor | None:
        return weights[name].to(device).float() if name in weights else None

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], of(f"{name}.weight"), eps)

    def product(x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, of(f"{name}.weight"), of(f"{name}.bias"))

    def turned(x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    x = weights["model.embed_tokens.weight"][tokens.to(device)].float()
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        qkv = product(normed(x, f"{layer}.input_layernorm"), f"{layer}.self_attn.qkv_proj")
        q, k, v = (
            part.unflatten(-1, (-1, head_dim)).transpose(1, 2)
            for part in qkv.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=-1)
        )
        k, v = (one.repeat_interleave(heads // kv_heads, dim=1) for one in (turned(k), v))
        attended = scaled_dot_product_attention(turned(q), k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + product(attended, f"{layer}.self_attn.o_proj")
        gate, up = product(normed(x, f"{layer}.post_attention_layernorm"), f"{layer}.mlp.gate_up_proj").chunk(2, dim=-1)
        x = x + product(silu(gate) * up, f"{layer}.mlp.down_proj")
    words = "lm_head" if "lm_head.weight" in weights else "model.embed_tokens"
    return product(normed(x[:, first:], "model.norm"), words)[..., : config["vocab_size"]]


def compared(config: Mapping[str, Any], weights: Mapping[str, Any], files: Mapping[str, str]) -> Json:
    """For each arm, the distance of its logits from fp32; and how often its top token differs from that of `stock`
    although the margin there exceeds twice the maximum distance of `stock` from fp32 in this row.

    `files` by arm, from `vllm_arm.py`, including `stock`, with equal tokens."""
    saved = {arm: torch.load(file) for arm, file in files.items()}
    stock = saved["stock"]
    tokens = torch.cat([stock["prompts"], stock["forced"]], dim=1)
    # Sequences one at a time, since all logits in fp32 are large.
    first = stock["prompts"].shape[1]
    of_each = []
    for one in tokens:
        key = tuple(one.tolist())
        if key not in _known:
            with torch.inference_mode():
                _known[key] = reference(config, weights, one[None], first)[0].cpu()
        of_each.append(_known[key])
    right = torch.stack(of_each, dim=1)
    bound = (stock["logits"] - right).abs().amax(dim=-1)
    found = {}
    for arm, one in saved.items():
        assert torch.equal(one["forced"], stock["forced"]), "other tokens"
        assert torch.equal(one["prompts"], stock["prompts"]), "other prompts"
        far = one["logits"] - right
        farthest = far.abs().amax(dim=-1)
        top = stock["logits"].topk(2, dim=-1)
        decided = top.values[..., 0] - top.values[..., 1] > 2 * bound
        others = decided & (one["logits"].argmax(dim=-1) != top.indices[..., 0])
        found[arm] = {
            "rms": round(float(far.square().mean().sqrt()), 6),
            "farthest": round(float(farthest.max()), 6),
            "rows": decided.numel(),
            "decided": int(decided.sum()),
            "other_top": int(others.sum()),
        }
    return {"spread": round(float(right.std()), 4), "arms": found}
