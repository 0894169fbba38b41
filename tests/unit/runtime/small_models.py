"""Tiny models of transformers on the CPU, for tests that have found PyTorch and transformers."""

from __future__ import annotations

from typing import Any

#: What is said of MLPs on a CPU.
ON_A_CPU = "run the pack's kernels (on a CPU PyTorch's products: move the model to a card before)"
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def model_of(family: str, dtype: Any = None, **changes: Any) -> Any:
    """A model with random weights, always the same; bf16 unless `dtype` says otherwise."""
    import torch
    import transformers

    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    name = family.removesuffix("Text") + "ForCausalLM"
    torch.manual_seed(1)
    return getattr(transformers, name)(config).to(dtype or torch.bfloat16).eval()


def logits(model: Any) -> Any:
    """The logits of two sequences of five tokens."""
    import torch

    with torch.inference_mode():
        return model(torch.arange(10).view(2, 5) + 7).logits
