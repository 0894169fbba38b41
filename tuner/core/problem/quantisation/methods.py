"""The methods of quantisation, by their names in configs, and the reader of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.core.problem.quantisation import awq, compressed, fp8, gptq
from tuner.core.problem.quantisation.said import FIELD, Config, Stored
from tuner.core.problem.quantisation.shape import check_types
from tuner.errors import InvalidInput

METHODS: Mapping[str, Callable[[Config, str], Stored | None]] = {
    "gptq": gptq.stored_as,
    "awq": awq.stored_as,
    "compressed-tensors": compressed.stored_as,
    "fp8": fp8.stored_as,
    "fbgemm_fp8": fp8.by_rows_stored_as,
    "modelopt": fp8.modelopt_stored_as,
    "modelopt_fp4": fp8.modelopt_stored_as,
    "mxfp4": fp8.mxfp4_stored_as,
}
#: Why other methods are refused.
_REFUSED = {
    "bitsandbytes": "its codes come from its own table (nf4), or are 8-bit integers",
    "auto-round": "its layers may have different bit widths, which its config describes in its own format",
    "intel/auto-round": "its layers may have different bit widths, which its config states in a format of its own",
    "hqq": "its zero points are not integers",
    "aqlm": "its codes are indices into codebooks",
    "vptq": "its codes are indices into codebooks",
    "quip": "its codes are indices into codebooks",
    "spqr": "some of its weights are stored separately",
    "bitnet": "its weights have fewer than two bits",
    "eetq": "8-bit integers are not supported",
    "quanto": "the layout of its tensors is not supported",
    "torchao": "the layout of its tensors is not supported",
    "quark": "the layout of its tensors is not supported",
}


def quantisation_of(model: Mapping[str, Any]) -> Config | None:
    """The part of a model's config that describes its quantisation; None if it is not quantised.

    Raises:
        InvalidInput: that part is not an object.
    """
    for name in (FIELD, "compression_config"):
        if found := model.get(name):
            if not isinstance(found, Mapping):
                raise InvalidInput(
                    name, f"is {found!r}, not an object", "give the config.json as the quantiser wrote it"
                )
            return found
    return None


def method_of(config: Config) -> str:
    """The name of a config's method.

    Raises:
        InvalidInput: the method is not supported.
    """
    named = config.get("quant_method") or ("modelopt" if isinstance(config.get("quantization"), Mapping) else None)
    method = "missing" if named is None else str(named).lower()
    if method not in METHODS:
        because = f": {_REFUSED[method]}" if method in _REFUSED else ""
        raise InvalidInput(f"{FIELD}.quant_method", f"is {method}{because}", f"give one of {', '.join(METHODS)}")
    return method


def stored_as(config: Config, module: str) -> Stored | None:
    """How a module's product is quantised; None if it is not quantised.

    Args:
        config: the model's `quantization_config`.
        module: e.g. ``model.layers.0.mlp.down_proj``.

    Raises:
        InvalidInput: no kernel supports a field, with what would be valid.
    """
    reader = METHODS[method_of(config)]
    check_types(config)
    return reader(config, module)
