"""The supported parts of a model that is refused as a whole, because of experts or quantised weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.client.models.kinds_in_models import kinds_in_models
from tuner.client.models.model_families import language_fields, wrapped_family
from tuner.client.models.models import EXPERTS, QUANTISED, dtype_of, size_of
from tuner.core.problem.activation import of_transformers
from tuner.core.units import counted
from tuner.errors import InvalidInput
from tuner.packs.shapes import Shape


def what_remains(
    config: Mapping[str, Any], *, tp: int = 1, dtype: str | None = None
) -> tuple[dict[Shape, int], list[str]]:
    """The dense feed-forward blocks on one of `tp` ranks, with their numbers of layers, and a description of the rest.
    Empty for a model without experts and quantised weights, since then its family is unsupported.

    Args: as for `ffn_shapes`.

    Raises:
        InvalidInput: a field that is a size is missing or wrong.
    """
    config = config if wrapped_family(config) is None else language_fields(config)
    if any(config.get(name) for name in QUANTISED):
        known = [kind.whether_known(config, "whose keys and values are not quantised") for kind in kinds_in_models()]
        return {}, [*known, "no product: its weights are quantised"]
    if not any(config.get(name) for name in EXPERTS):
        return {}, []
    layers = size_of(config, "num_hidden_layers")
    found: dict[Shape, int] = {}
    words = [kind.whether_known(config, "and o_proj after it, and qkv before it") for kind in kinds_in_models()]
    for what, width, count in _dense(config, layers):
        if width % tp:
            words.append(f"{what}: {width} columns are not a multiple of tp {tp}")
            continue
        shape = _shape(config, width // tp, dtype)
        found[shape] = found.get(shape, 0) + count
        words.append(f"{what}: {shape}, in {count} of {counted(layers, 'layer')}")
    return found, words


def _dense(config: Mapping[str, Any], layers: int) -> list[tuple[str, int, int]]:
    """Blocks other than routed experts, as (name, intermediate size, number of layers)."""
    first = int(config.get("first_k_dense_replace") or 0)
    dense = first or len(config.get("mlp_only_layers") or ())
    found = [("the dense layers", size_of(config, "intermediate_size"), dense)] if dense else []
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    shared = shared or int(config.get("n_shared_experts") or 0) * int(config.get("moe_intermediate_size") or 0)
    return [*found, ("the shared experts", shared, layers - dense)] if shared else found


def _shape(config: Mapping[str, Any], d_hidden: int, dtype: str | None) -> Shape:
    hidden = size_of(config, "hidden_size")
    if "hidden_act" not in config:
        raise InvalidInput("hidden_act", "is missing", "pass the whole config.json of the model")
    activation = str(of_transformers(config["hidden_act"], field="hidden_act"))
    return Shape(
        dtype=dtype or dtype_of(config), activation=activation, d_in=hidden, d_hidden=d_hidden, d_out=hidden, gated=True
    )
