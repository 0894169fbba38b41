"""The methods of quantisation, by their names in configs, and what reads each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.core.problem.quantisation import awq, compressed, fp8, gptq
from tuner.core.problem.quantisation.said import FIELD, Config, Stored
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
    "bitsandbytes": "its codes are of a table of their own (nf4), or integers of 8 bits",
    "auto-round": "its layers may have mixed bits, and its config says which in a form of its own",
    "intel/auto-round": "its layers may have mixed bits, and its config says which in a form of its own",
    "hqq": "its zero points are no integers",
    "aqlm": "its codes are of codebooks",
    "vptq": "its codes are of codebooks",
    "quip": "its codes are of codebooks",
    "spqr": "some of its weights lie apart",
    "bitnet": "its weights have fewer than two bits",
    "eetq": "integers of 8 bits have no kernel here",
    "quanto": "its tensors are in no layout that is read here",
    "torchao": "its tensors are in no layout that is read here",
    "quark": "its tensors are in no layout that is read here",
}


def quantisation_of(model: Mapping[str, Any]) -> Config | None:
    """The part of a model's config that describes its quantisation; None if it is not quantised.

    Raises:
        InvalidInput: that part is not an object.
    """
    for name in (FIELD, "compression_config"):
        if found := model.get(name):
            if not isinstance(found, Mapping):
                raise InvalidInput(name, f"is {found!r}, no object", "give the config.json as the quantiser wrote it")
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
        InvalidInput: names the field that no kernel supports, and what would be right.
    """
    return METHODS[method_of(config)](config, module)
