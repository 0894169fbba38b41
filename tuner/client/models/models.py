"""From a model's Hugging Face config to the shapes of its feed-forward blocks on a tensor-parallel rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tuner.client.models.model_families import FAMILIES, WRAPPED, language_fields, wrapped_family
from tuner.client.models.quantised import Block, blocks_of
from tuner.core.problem.activation import of_transformers
from tuner.core.problem.dtype import UNSCALED, Dtype
from tuner.core.problem.quantisation import quantisation_of
from tuner.errors import InvalidInput
from tuner.packs.shapes import Shape

Some = TypeVar("Some")

#: Modules of an MLP; a family may combine the first two.
_MODULES, _JOINED = ("gate_proj", "up_proj", "down_proj"), {"phi3": ("gate_up_proj", "down_proj")}
_DTYPES = {one.row.array_name: str(one) for one in Dtype}
#: Settings for a whole model that also apply to its language model.
QUANTISED = ("quantization_config", "compression_config")
_OF_THE_WHOLE = ("dtype", "torch_dtype", *QUANTISED)
#: Fields with the number of experts; their name depends on the family.
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def ffn_shapes(
    config: Mapping[str, Any], *, tp: int = 1, dtype: str | None = None, residual: bool = False
) -> dict[Shape, int]:
    """Each shape of the model's feed-forward blocks on one of `tp` ranks, and how many layers have it.

    The intermediate is split over the ranks; every rank has all columns of X and Y, and Y is summed over the ranks.

    Args:
        config: the contents of the model's `config.json`.
        tp: tensor-parallel ranks, >= 1.
        dtype: ``fp16`` or ``bf16``; the config's own by default.
        residual: whether the kernel adds the residual.

    Raises:
        InvalidInput: the model has experts, is quantised, or is of an unsupported family.
    """
    return dict(_plain(dense_language_model(config), tp, dtype, residual))


def ffn_blocks(
    config: Mapping[str, Any],
    *,
    tp: int = 1,
    dtype: str | None = None,
    residual: bool = False,
    fp8_groups: bool = False,
) -> dict[Shape | Block, int]:
    """The same for a model that may be quantised; `fp8_groups` as for `blocks_of`.

    Raises:
        InvalidInput: as `ffn_shapes`; or its weights are quantised in an unsupported way.
    """
    config = _dense(config)
    if quantisation_of(config) and (residual or _has_bias(config)):
        problem = "is set, but kernels with quantised weights do not add it"
        raise InvalidInput("residual" if residual else "mlp_bias", problem, "add it after the kernel")
    return {
        block: count
        for shape, layers in _plain(config, tp, dtype, residual)
        for block, count in blocks_of(
            config, shape, layers, _JOINED.get(config["model_type"], _MODULES), fp8_groups=fp8_groups
        ).items()
    }


def _plain(config: Mapping[str, Any], tp: int, dtype: str | None, residual: bool) -> list[tuple[Shape, int]]:
    hidden, layers = size_of(config, "hidden_size"), size_of(config, "num_hidden_layers")
    bias = _has_bias(config)
    if tp > 1 and (residual or bias):
        what = "a fused residual" if residual else "the bias of the second product (mlp_bias)"
        problem = f"is {tp}, and the ranks' outputs are summed: {what} would be added {tp} times"
        raise InvalidInput("tp", problem, "add it after the sum, or tune for tp = 1")
    intermediate = size_of(config, "intermediate_size")
    if intermediate % tp:
        problem = f"is {tp}, but intermediate_size {intermediate} is not a multiple of it"
        raise InvalidInput("tp", problem, "use a number of ranks that divides it")
    shape = Shape(
        dtype=dtype or dtype_of(config),
        activation=_activation(config),
        d_in=hidden,
        d_hidden=intermediate // tp,
        d_out=hidden,
        gated=True,
        bias=bias,
        residual=residual,
    )
    return [(shape, layers)]


def _has_bias(config: Mapping[str, Any]) -> bool:
    return FAMILIES[config["model_type"]].reads_mlp_bias and flag_of(config, "mlp_bias")


def merged(models: list[dict[Some, int]]) -> dict[Some, int]:
    """The shapes of several models, each once, with the layers of all."""
    found: dict[Some, int] = {}
    for shapes in models:
        for shape, layers in shapes.items():
            found[shape] = found.get(shape, 0) + layers
    return found


def dense_language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of only the language model, with its family's defaults for missing fields.

    Raises:
        InvalidInput: the model has experts, is quantised, or is of an unsupported family.
    """
    config = _dense(config)
    _check_plain(config)
    return config


def _dense(config: Mapping[str, Any]) -> Mapping[str, Any]:
    config = _language_model(config)
    _check_dense(config)
    return {**FAMILIES[config["model_type"]].defaults, **config}


def _language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    if (family := wrapped_family(config)) is None:
        return config
    whole = {name: config[name] for name in _OF_THE_WHOLE if name in config}
    return {**whole, **language_fields(config), "model_type": family}


def _check_dense(config: Mapping[str, Any]) -> None:
    family = config.get("model_type")
    experts = next((name for name in EXPERTS if config.get(name)), None)
    if experts is not None:
        problem = f"is {config[experts]}: {family} is a mixture of experts, whose products are grouped by expert"
        raise InvalidInput(experts, problem, "use the config of a dense model")
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join((*FAMILIES, *WRAPPED))
        raise InvalidInput(
            "model_type",
            "is missing" if family is None else f"is {family!r}, whose feed-forward block is not supported",
            f"use the config.json of one of {known}",
        )


def _check_plain(config: Mapping[str, Any]) -> None:
    for name in QUANTISED:
        if quantised := config.get(name):
            method = quantised.get("quant_method", "an unnamed method") if isinstance(quantised, Mapping) else quantised
            problem = f"says that the layers are quantised by {method}; kernels support {' or '.join(UNSCALED)}"
            remedy = "pass the config of the model before quantisation, or tune only its MLPs (no --context)"
            raise InvalidInput(name, problem, remedy)


def size_of(config: Mapping[str, Any], name: str) -> int:
    """A field that is a size.

    Raises:
        InvalidInput: it is not a size.
    """
    found = config.get(name)
    if type(found) is not int or found < 1:
        problem = f"should be a positive integer, got {found!r}"
        raise InvalidInput(name, problem, "pass the config.json of the model")
    return found


def flag_of(config: Mapping[str, Any], name: str) -> bool:
    """A field that is true or false; null is false.

    Raises:
        InvalidInput: it is neither.
    """
    found = config.get(name)
    if found is not None and not isinstance(found, bool):
        raise InvalidInput(name, f"should be true or false, got {found!r}", "pass the config.json of the model")
    return bool(found)


def _activation(config: Mapping[str, Any]) -> str:
    field = FAMILIES[config["model_type"]].activation_field
    name = config[field]
    if config["model_type"] == "gemma" and name == "gelu":
        name = "gelu_pytorch_tanh"  # early Gemma configs mean the tanh form, as transformers knows
    return str(of_transformers(name, field=field))


def dtype_of(config: Mapping[str, Any]) -> str:
    """The element type of the model's weights.

    Raises:
        InvalidInput: it is neither fp16 nor bf16.
    """
    field = "dtype" if config.get("dtype") else "torch_dtype"
    name = config.get(field)
    if not isinstance(name, str) or name not in _DTYPES:
        raise InvalidInput(
            field, (f"is {name!r}, but kernels have only {' or '.join(UNSCALED)}"), "choose one with --dtype"
        )
    return _DTYPES[name]
