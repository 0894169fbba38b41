"""From a model's Hugging Face config to the decode attention of its layers, as one tensor-parallel rank has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.client.models import dense_language_model, dtype_of, size_of
from tuner.errors import InvalidInput

#: Families whose q, k and v have biases, whatever the config says, and those that norm queries and keys.
_QKV_BIAS, _NORMS_QUERIES = ("qwen2",), ("qwen3",)
#: Types of rotary embeddings whose frequencies do not change with the length, and that scale nothing.
_PLAIN_ROTARY = ("default", "linear", "llama3")
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


def qkv_attention_chain(
    config: Mapping[str, Any],
    *,
    sequences: int,
    max_length: int,
    tp: int = 1,
    dtype: str | None = None,
    page_tokens: int | None = None,
) -> dict[str, Any]:
    """The same with what is in front: norm, the product of queries, keys and values, which turns them and writes to the
    cache, attention and o_proj, as `POST /jobs` takes them; of one of `tp` ranks, between two all-reduces.

    Args: as `attention_pair`.

    Raises:
        InvalidInput: as `attention_pair`; or the model norms queries and keys, its rotary embeddings change with the
            length or turn a part of a head, or ranks would each add the bias of o_proj.
    """
    pair = attention_pair(
        config, sequences=sequences, max_length=max_length, tp=tp, dtype=dtype, page_tokens=page_tokens
    )
    config = dense_language_model(config)
    _check_turned(config)
    has_bias = bool(config.get("attention_bias"))
    if has_bias and tp > 1:
        problem = f"is {tp}, and the ranks' outputs are summed: the bias of o_proj would be added {tp} times"
        raise InvalidInput("tp", problem, "tune the attention alone, and add it behind the sum")
    heads, kv_heads, head_dim = pair["heads"], pair["kv_heads"], pair["head_dim"]
    pages = {} if page_tokens is None else {"page_tokens": page_tokens}
    sizes = {"kv_heads": kv_heads, "head_dim": head_dim, "max_length": max_length, "new_tokens": 1, **pages}
    window = {} if pair["window"] is None else {"window": pair["window"]}
    hidden = size_of(config, "hidden_size")
    qkv = {
        "name": "qkv",
        "source": "residual",
        "n": (heads + 2 * kv_heads) * head_dim,
        "k": hidden,
        "bias": has_bias or config["model_type"] in _QKV_BIAS,
        "norm": "residual",
        "eps": config.get("rms_norm_eps", 1e-6),
        "rotary": {"heads": heads, **sizes},
    }
    attention = {
        "op": "attention",
        "name": "attention",
        "source": "qkv",
        "sequences": sequences,
        "heads": heads,
        **sizes,
        **window,
    }
    o_proj = {"name": "o_proj", "source": "attention", "n": hidden, "k": heads * head_dim, "bias": has_bias}
    return {"kind": "chain", "m": sequences, "dtype": pair["dtype"], "ops": [qkv, attention, o_proj]}


def _check_turned(config: Mapping[str, Any]) -> None:
    """That queries and keys are turned as a kernel here does it."""
    family, remedy = (
        config["model_type"],
        "tune the attention without --with-qkv, and write to the cache in front of it",
    )
    if family in _NORMS_QUERIES:
        problem = f"is {family!r}, which norms queries and keys between qkv and the attention, and no kernel here does"
        raise InvalidInput("model_type", problem, remedy)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _PLAIN_ROTARY:
        problem = f"is of type {kind!r}, whose frequencies change with the length, or which scales queries and keys"
        raise InvalidInput("rope_scaling", problem, remedy)
    part = config.get("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0))
    if part != 1.0:
        raise InvalidInput("partial_rotary_factor", f"is {part}, and a kernel here turns whole heads", remedy)
