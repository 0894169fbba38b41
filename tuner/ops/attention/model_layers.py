"""The attentions in the layers of a model, as transformers builds them from a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.client.models.model_families import FAMILIES, Biases, Windows
from tuner.client.models.models import dense_language_model, flag_of, size_of
from tuner.errors import InvalidInput

#: The values of `layer_types` for a layer with a window, and for one without.
_SLIDING, _FULL = "sliding_attention", "full_attention"
_GIVE_CONFIG = "pass the config.json of the model"


@dataclass(frozen=True, kw_only=True)
class LayerAttention:
    """The attention of a layer, as transformers builds it from the config."""

    heads: int
    kv_heads: int
    head_dim: int
    #: Tokens that a query sees, including itself; None if it sees all.
    window: int | None
    #: Scale of the scores; None for 1 / sqrt(head_dim).
    scale: float | None
    #: Scores become soft_cap * tanh(score / soft_cap); None for no cap.
    soft_cap: float | None
    qkv_bias: bool
    #: Whether o_proj has a bias.
    out_bias: bool
    #: The type of its rotary embedding.
    rotary: str
    #: The part of a head that is rotated; None if all of it is.
    turned_part: float | None


def layer_attentions(config: Mapping[str, Any]) -> dict[LayerAttention, int]:
    """Each kind of attention in the layers of a model, and how many layers have it.

    Args:
        config: the content of the model's `config.json`.

    Raises:
        InvalidInput: the model has experts, is quantised or of an unknown family, or a field is invalid.
    """
    config = dense_language_model(config)
    family = FAMILIES[config["model_type"]]
    if flag_of(config, "use_bidirectional_attention"):
        raise InvalidInput(
            "use_bidirectional_attention", "is true: its layers do not decode", "use the config of a decoder"
        )
    heads = size_of(config, "num_attention_heads")
    if config["head_dim"] is None:
        head_dim = _share("hidden_size", size_of(config, "hidden_size"), "num_attention_heads", heads)
    else:
        head_dim = size_of(config, "head_dim")
    kv_heads = heads if config["num_key_value_heads"] is None else size_of(config, "num_key_value_heads")
    _share("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    out_bias = family.biases is Biases.CONFIGURED and flag_of(config, "attention_bias")
    found: dict[LayerAttention, int] = {}
    for kind in _layer_kinds(config):
        rotary = _rotary(config, kind)
        layer = LayerAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=_window(config) if kind == _SLIDING else None,
            scale=_scale(config, head_dim),
            soft_cap=number_of(config, "attn_logit_softcapping"),
            qkv_bias=out_bias or family.biases is Biases.QKV,
            out_bias=out_bias,
            rotary="mrope" if family.turns_by_sections else str(rotary.get("rope_type", rotary.get("type", "default"))),
            turned_part=number_of({**config, **rotary}, "partial_rotary_factor"),
        )
        found[layer] = found.get(layer, 0) + 1
    return found


def _share(name: str, size: int, divisor: str, count: int) -> int:
    if size % count:
        raise InvalidInput(
            divisor, f"is {count}, but {name} {size} is not a multiple of it", "use the model's own config"
        )
    return size // count


def _layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """`full_attention` or `sliding_attention` of each layer."""
    windows, layers = FAMILIES[config["model_type"]].windows, size_of(config, "num_hidden_layers")
    if windows is Windows.NONE:
        return [_FULL] * layers
    if windows is Windows.SWITCHED and not flag_of(config, "use_sliding_window"):
        return [_FULL] * layers
    if windows is Windows.ALL:
        return [_SLIDING] * layers
    if (named := config["layer_types"]) is not None:
        return _named_kinds(named, layers)
    if windows is Windows.SWITCHED:
        first = config["max_window_layers"]
        if type(first) is not int:
            raise InvalidInput("max_window_layers", f"should be an integer, got {first!r}", _GIVE_CONFIG)
        return [_SLIDING if layer >= first else _FULL for layer in range(layers)]
    every = 2 if windows is Windows.ALTERNATE else size_of(config, "sliding_window_pattern")
    return [_SLIDING if (layer + 1) % every else _FULL for layer in range(layers)]


def _named_kinds(named: object, layers: int) -> list[str]:
    if not isinstance(named, list) or len(named) != layers:
        got = f"{len(named)} entries" if isinstance(named, list) else repr(named)
        problem = f"should be a list of num_hidden_layers, {layers}, got {got}"
        raise InvalidInput("layer_types", problem, _GIVE_CONFIG)
    for number, kind in enumerate(named):
        if kind not in (_SLIDING, _FULL):
            problem = f"is {kind!r}, an attention that no kernel supports"
            raise InvalidInput(f"layer_types.{number}", problem, f"use a model of {_FULL} and {_SLIDING}")
    return named


def _window(config: Mapping[str, Any]) -> int | None:
    return None if config["sliding_window"] is None else size_of(config, "sliding_window")


def number_of(config: Mapping[str, Any], name: str) -> float | None:
    """A field that is a number above 0; None if it is null or missing.

    Raises:
        InvalidInput: it is not a number above 0.
    """
    found = config.get(name)
    if found is None:
        return None
    if type(found) not in (int, float) or not found > 0:
        raise InvalidInput(name, f"should be a positive number, got {found!r}", _GIVE_CONFIG)
    return float(found)


def _scale(config: Mapping[str, Any], head_dim: int) -> float | None:
    """Scale of the scores, if it is not the usual one."""
    if "query_pre_attn_scalar" not in FAMILIES[config["model_type"]].defaults:
        return None
    under_the_root = number_of(config, "query_pre_attn_scalar")
    return None if under_the_root in (None, head_dim) else float(under_the_root) ** -0.5


def _rotary(config: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The parameters of the rotary embedding of a kind of layer; a config may have separate ones per kind."""
    name = next((name for name in ("rope_scaling", "rope_parameters") if config.get(name)), None)
    found = {} if name is None else config[name]
    if isinstance(found, Mapping) and found.keys() & {_FULL, _SLIDING}:
        found = found.get(kind) or {}
    if not isinstance(found, Mapping):
        raise InvalidInput(str(name), f"should be an object, got {found!r}", _GIVE_CONFIG)
    return found
