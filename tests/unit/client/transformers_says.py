"""Writes `transformers_says.json`: how transformers' own classes read many configs.

It requires transformers, but not PyTorch: `python tests/unit/client/transformers_says.py`.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".json")
_SIZES = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8, "num_attention_heads": 32}
_KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2
_LINEAR = {"rope_type": "linear", "factor": 2.0}
_BY_KIND = {"full_attention": _LINEAR, "sliding_attention": {"rope_type": "default"}}
_QWEN_CHANGES: list[dict[str, Any]] = [
    {"sliding_window": 1024},
    {"sliding_window": 1024, "use_sliding_window": False},
    {"sliding_window": 1024, "use_sliding_window": True},
    {"use_sliding_window": True, "max_window_layers": 3},
    {"use_sliding_window": True, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
    {"use_sliding_window": True, "layer_types": _KINDS},
    {"use_sliding_window": False, "layer_types": _KINDS},
    {"attention_bias": True},
    {"head_dim": 64},
    {"num_key_value_heads": None},
    {"num_attention_heads": 64, "num_key_value_heads": 8},
    {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
]
_GEMMA_CHANGES: list[dict[str, Any]] = [
    {"sliding_window": 512},
    {"sliding_window_pattern": 3},
    {"layer_types": _KINDS},
    {"query_pre_attn_scalar": 144, "head_dim": 128, "num_key_value_heads": 16},
    {"attn_logit_softcapping": 30.0},
    {"attn_logit_softcapping": None},
    {"attention_bias": True},
]
_PLAIN_CHANGES: list[dict[str, Any]] = [
    {"sliding_window": 1024},
    {"sliding_window": None},
    {"sliding_window": 1024, "use_sliding_window": False},
    {"sliding_window": 1024, "layer_types": _KINDS},
    {"attention_bias": True, "mlp_bias": True},
    {"num_key_value_heads": None},
    {"num_key_value_heads": 4},
    {"head_dim": 64},
    {"rope_parameters": _LINEAR},
    {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
    {"rope_scaling": None, "rope_theta": 500000.0},
    {"hidden_act": "relu"},
]
#: For each family, configs besides the one with only `model_type` and sizes.
CHANGES: dict[str, list[dict[str, Any]]] = {
    "llama": [*_PLAIN_CHANGES, {"head_dim": None}, {"mlp_bias": True}],
    "mistral": [*_PLAIN_CHANGES, {"head_dim": None}],
    "phi3": [*_PLAIN_CHANGES, {"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.75}}],
    "gemma": [{"sliding_window": 1024}, {"hidden_act": "gelu"}, {"attention_bias": True}, {"head_dim": 128}],
    "qwen2": _QWEN_CHANGES,
    "qwen3": _QWEN_CHANGES,
    "qwen2_vl_text": _QWEN_CHANGES,
    "qwen2_5_vl_text": _QWEN_CHANGES,
    "qwen3_vl_text": [
        {"attention_bias": True},
        {"head_dim": 64},
        {"num_attention_heads": 64, "num_key_value_heads": 8},
    ],
    "gemma2": _GEMMA_CHANGES,
    "gemma3_text": [*_GEMMA_CHANGES, {"rope_parameters": _BY_KIND}],
}


def biases(family: str, config: Any) -> dict[str, bool]:
    """Which products have a bias, as the family's modelling code builds them."""
    module = importlib.import_module("transformers")
    path = Path(str(module.__file__)).parent / "models" / family / f"modeling_{family}.py"
    text = path.read_text(encoding="utf-8")

    def of(product: str) -> bool:
        found = re.search(rf"self\.{product} = nn\.Linear\(.*?bias=([\w.]+)\s*\)", text, re.DOTALL)
        assert found is not None, (family, product)
        said = found[1]
        return bool(getattr(config, said.removeprefix("config."))) if said.startswith("config.") else said == "True"

    qkv = "qkv_proj" if "self.qkv_proj =" in text else "q_proj"
    return {
        "qkv_bias": of(qkv),
        "out_bias": of("o_proj"),
        "mlp_bias": of("down_proj"),
        "norms_queries": "self.q_norm =" in text,
    }


def windows(family: str, config: Any, text: str) -> list[int | None]:
    """The window of each layer; `text` is the modelling code."""
    count = config.num_hidden_layers
    if "sliding_window" not in text:
        return [None] * count
    if "layer_types[" in text:
        named = config.layer_types
        return [config.sliding_window if kind == "sliding_attention" else None for kind in named]
    return [config.sliding_window] * count


def says(given: dict[str, Any]) -> dict[str, Any]:
    """How the class of a config reads it."""
    transformers = importlib.import_module("transformers")
    made = transformers.AutoConfig.for_model(**given)
    family = given["model_type"].removesuffix("_text")
    path = Path(str(transformers.__file__)).parent / "models" / family / f"modeling_{family}.py"
    kinds = getattr(made, "layer_types", None) or ["full_attention"] * made.num_hidden_layers
    rotary = made.rope_parameters or {}
    by_kind = rotary if rotary.keys() & set(kinds) else dict.fromkeys(kinds, rotary)
    text = path.read_text(encoding="utf-8")
    layers = Counter(
        (
            window,
            "mrope" if "mrope_section" in text else by_kind[kind]["rope_type"],
            by_kind[kind].get("partial_rotary_factor", 1.0),
        )
        for kind, window in zip(kinds, windows(family, made, text), strict=True)
    )
    activation = made.hidden_activation if "gemma" in family and family != "gemma" else made.hidden_act
    return {
        "hidden_size": made.hidden_size,
        "intermediate_size": made.intermediate_size,
        "heads": made.num_attention_heads,
        "kv_heads": made.num_key_value_heads,
        "head_dim": getattr(made, "head_dim", None) or made.hidden_size // made.num_attention_heads,
        "activation": activation,
        "eps": made.rms_norm_eps,
        "score_divisor": getattr(made, "query_pre_attn_scalar", None),
        "soft_cap": getattr(made, "attn_logit_softcapping", None),
        **biases(family, made),
        "layers": [[*layer, count] for layer, count in layers.items()],
    }


def configs() -> list[dict[str, Any]]:
    """All configs of the file."""
    found: list[dict[str, Any]] = []
    for family, changes in CHANGES.items():
        found.append({"model_type": family})
        found += [{"model_type": family, **_SIZES, **one} for one in ({}, *changes)]
    return found


if __name__ == "__main__":
    version = importlib.import_module("transformers").__version__
    rows = []
    for given in configs():
        try:
            rows.append(json.dumps({"config": given, "says": says(json.loads(json.dumps(given)))}))
        except Exception as error:  # in several libraries: null where the class needs a number
            print(f"left out, since transformers refuses it: {given}: {error}")
    TABLE.write_text(f'{{"transformers": "{version}", "rows": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")
