"""From a model's Hugging Face config to the decode attention of its layers, as one tensor-parallel rank has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.client.models import dense_language_model, dtype_of, size_of
from tuner.errors import InvalidInput

#: Families whose layers differ in their attention, or whose scores have a cap: theirs are tuned by their sizes.
_OTHERWISE = ("gemma", "gemma2", "gemma3_text")


def attention_pair(
    config: Mapping[str, Any],
    *,
    sequences: int,
    max_length: int,
    tp: int = 1,
    dtype: str | None = None,
    page_tokens: int | None = None,
) -> dict[str, Any]:
    """The attention of a decode step with its projection, as `POST /jobs` takes it; of one of `tp` ranks.

    Heads are split over the ranks, whose projections are summed. Where o_proj has a bias the attention is alone.

    Args:
        config: as `config.json` of the model has it.
        sequences: of a launch, >= 1.
        max_length: tokens of the longest context.
        tp: tensor-parallel ranks, >= 1.
        dtype: ``fp16`` or ``bf16``; by default the config's own.
        page_tokens: of a page of the cache; None where it is contiguous.

    Raises:
        InvalidInput: the model has experts, is quantised, or its attention is not one that all layers share.
    """
    config = dense_language_model(config)
    family = config["model_type"]
    if family in _OTHERWISE:
        problem = f"is {family!r}, whose layers do not all have the same plain attention"
        raise InvalidInput("model_type", problem, "submit its attentions by their sizes: --heads, --window, --soft-cap")
    hidden, heads = size_of(config, "hidden_size"), size_of(config, "num_attention_heads")
    kv_heads = size_of(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    for name, count in (("num_attention_heads", heads), ("num_key_value_heads", kv_heads)):
        if count % tp:
            problem = f"is {tp}, and {name} {count} is no multiple of it"
            raise InvalidInput("tp", problem, "give a number of ranks that divides it")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return {
        "kind": "attention",
        "sequences": sequences,
        "max_length": max_length,
        "heads": heads // tp,
        "kv_heads": kv_heads // tp,
        "head_dim": config.get("head_dim") or hidden // heads,
        "d_out": None if config.get("attention_bias") else hidden,
        "page_tokens": page_tokens,
        "window": window if window and window < max_length else None,
        "dtype": dtype or dtype_of(config),
    }
