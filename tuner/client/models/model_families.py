"""The config classes of transformers for the model families that `tune-model` supports.

Source: `configuration_*.py` and `modeling_*.py` of transformers 5.24. `tests/unit/client/transformers_says.py` records
the values of these classes for many configs, and a test compares this module with the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Windows(StrEnum):
    """Which layers of a family have a sliding window of `sliding_window` tokens."""

    #: None: a window in the config is ignored.
    NONE = "none"
    #: All of them.
    ALL = "all"
    #: With `use_sliding_window`, those from `max_window_layers` on, or according to `layer_types`.
    SWITCHED = "switched"
    #: Every other one, starting with the first, or according to `layer_types`.
    ALTERNATE = "alternate"
    #: All but every `sliding_window_pattern`-th, or according to `layer_types`.
    PATTERN = "pattern"


class Biases(StrEnum):
    """Which of the projections of an attention have a bias."""

    NONE = "none"
    #: All four, if `attention_bias` is set.
    CONFIGURED = "configured"
    #: Those of queries, keys and values, whatever the config says.
    QKV = "qkv"


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the config of a `model_type` is read."""

    #: Default values of missing fields.
    defaults: Mapping[str, Any]
    windows: Windows
    biases: Biases
    #: Whether the MLP has biases if `mlp_bias` is set.
    reads_mlp_bias: bool = False
    #: Whether queries and keys are normalised before the attention.
    norms_queries: bool = False
    #: Whether a norm multiplies by 1 + its weight; our kernels multiply by the weight.
    adds_one_to_norms: bool = False
    #: Whether configs of the family omit sizes of attentions that equal the default.
    leaves_out_sizes: bool = False
    #: Whether each part of a head is rotated by another coordinate of a token; our kernels have one position.
    turns_by_sections: bool = False

    @property
    def activation_field(self) -> str:
        """The name of the field with the MLP's activation."""
        return next(name for name in ("hidden_act", "hidden_activation") if name in self.defaults)


def _defaults(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int | None, **others: Any
) -> dict[str, Any]:
    """Defaults of a family; None means the number of heads, or a value that depends on other fields."""
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": None,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "mlp_bias": False,
        "layer_types": None,
        **others,
    }


_SILU: Mapping[str, Any] = {"hidden_act": "silu"}
_QWEN = {**_SILU, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_QWEN_VL = _defaults(8192, 29568, 80, 64, 8, **{**_QWEN, "max_window_layers": 80}, rms_norm_eps=1e-5)
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "sliding_window": 4096}
_GEMMA_SCORES = {"query_pre_attn_scalar": 256, "use_bidirectional_attention": False}

#: By `model_type`: families whose feed-forward blocks are gated ones with two products.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        defaults=_defaults(4096, 11008, 32, 32, None, **_SILU),
        windows=Windows.NONE,
        biases=Biases.CONFIGURED,
        reads_mlp_bias=True,
    ),
    "mistral": Family(
        defaults=_defaults(4096, 14336, 32, 32, 8, **_SILU, sliding_window=4096),
        windows=Windows.ALL,
        biases=Biases.NONE,
    ),
    "qwen2": Family(defaults=_defaults(4096, 22016, 32, 32, 32, **_QWEN), windows=Windows.SWITCHED, biases=Biases.QKV),
    "qwen3": Family(
        defaults=_defaults(4096, 22016, 32, 32, 32, **_QWEN, head_dim=128),
        windows=Windows.SWITCHED,
        biases=Biases.CONFIGURED,
        norms_queries=True,
    ),
    "phi3": Family(
        defaults=_defaults(3072, 8192, 32, 32, None, **_SILU, rms_norm_eps=1e-5, sliding_window=None),
        windows=Windows.ALL,
        biases=Biases.NONE,
    ),
    "gemma": Family(
        defaults=_defaults(3072, 24576, 28, 16, 16, hidden_act="gelu_pytorch_tanh", head_dim=256),
        windows=Windows.NONE,
        biases=Biases.CONFIGURED,
        adds_one_to_norms=True,
    ),
    "gemma2": Family(
        defaults=_defaults(2304, 9216, 26, 8, 4, **_GEMMA, **_GEMMA_SCORES, attn_logit_softcapping=50.0),
        windows=Windows.ALTERNATE,
        biases=Biases.CONFIGURED,
        adds_one_to_norms=True,
    ),
    "gemma3_text": Family(
        defaults=_defaults(
            2304, 9216, 26, 8, 4, **_GEMMA, **_GEMMA_SCORES, attn_logit_softcapping=None, sliding_window_pattern=6
        ),
        windows=Windows.PATTERN,
        biases=Biases.CONFIGURED,
        norms_queries=True,
        adds_one_to_norms=True,
        leaves_out_sizes=True,
    ),
    "qwen2_vl_text": Family(defaults=_QWEN_VL, windows=Windows.SWITCHED, biases=Biases.QKV, turns_by_sections=True),
    "qwen2_5_vl_text": Family(defaults=_QWEN_VL, windows=Windows.SWITCHED, biases=Biases.QKV, turns_by_sections=True),
    "qwen3_vl_text": Family(
        defaults=_defaults(4096, 22016, 32, 32, 32, **_SILU, head_dim=128),
        windows=Windows.NONE,
        biases=Biases.CONFIGURED,
        norms_queries=True,
        turns_by_sections=True,
    ),
}
#: Models whose language model is in `text_config`, and its family if that is missing there.
WRAPPED = {
    "gemma3": "gemma3_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
}
#: Those whose older configs have the fields of the language model beside the others.
_FLAT = ("qwen2_vl", "qwen2_5_vl")


def language_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the language model in the config of a whole one."""
    found: Mapping[str, Any] = config.get("text_config", config)
    return found


def wrapped_family(config: Mapping[str, Any]) -> Any:
    """The family of the language model in a config of more, if its family is supported or the whole model is in
    `WRAPPED`. None if the config itself describes a language model."""
    inner, whole = config.get("text_config"), config.get("model_type")
    if whole in _FLAT and "text_config" not in config:
        return WRAPPED[whole]
    if not isinstance(inner, Mapping) or not isinstance(whole, str) or whole in FAMILIES:
        return None
    found = inner.get("model_type", WRAPPED.get(whole))
    return found if whole in WRAPPED or (isinstance(found, str) and found in FAMILIES) else None
