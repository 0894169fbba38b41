"""fp8 e4m3 by channel, tensor or block. Source: vLLM's `quant_method` fp8, FBGEMM's as transformers writes it,
ModelOpt's `hf_quant_config.json` as `config.json` has it."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.core.problem.quantisation.said import FIELD, Activations, Config, Stored, in_blocks_of, in_e2m1, is_among
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput

#: The only element type of these checkpoints that kernels support.
_FORMAT = WeightFormat.E4M3
_SCHEMES = {"static": Activations.TENSOR, "dynamic": Activations.TOKEN}
#: ModelOpt's algorithms, by name.
_ALGORITHMS = {
    "FP8": Activations.TENSOR,
    "FP8_PER_CHANNEL_PER_TOKEN": Activations.TOKEN,
}
_IN_BLOCKS, _IN_E2M1 = "FP8_PB_WO", "MXFP4"
#: Why other algorithms have no kernel.
_REFUSED = {
    "NVFP4": "groups of 16 with fp8 scales are not supported",
    "W4A16_NVFP4": "groups of 16 with fp8 scales are not supported",
    "W4A16_AWQ": "the layout of its tensors is not supported",
    "W4A8_AWQ": "the layout of its tensors is not supported",
    "W4A8_MXFP4_FP8": "fp4 weights with fp8 activations are not supported",
    "MIXED_PRECISION": "its layers have different bit widths",
    "INT8_SQ": "8-bit integers are not supported",
}


def stored_as(config: Config, module: str) -> Stored | None:
    """How a module's weights are stored; None if they are not quantised.

    Raises:
        InvalidInput: names the field that has no kernel.
    """
    if is_among(module, config.get("modules_to_not_convert")) or is_among(module, config.get("ignored_layers")):
        return None
    if (kind := str(config.get("fmt") or _FORMAT).lower()) != _FORMAT:
        raise InvalidInput(f"{FIELD}.fmt", f"is {kind}", "give a checkpoint of e4m3")
    if (block := config.get("weight_block_size")) is not None:
        stored = in_blocks_of(f"{FIELD}.weight_block_size", block)
        is_dynamic = config.get("activation_scheme") == "dynamic"
        return Stored(weights=stored, activations=Activations.BLOCK if is_dynamic else Activations.SIXTEEN)
    scheme = config.get("activation_scheme", "dynamic")
    if scheme not in _SCHEMES:
        raise InvalidInput(f"{FIELD}.activation_scheme", f"is {scheme!r}", f"give one of {', '.join(_SCHEMES)}")
    return Stored(weights=_FORMAT, activations=_SCHEMES[scheme])


def by_rows_stored_as(config: Config, module: str) -> Stored | None:
    """Same as `stored_as` for FBGEMM's config: weights by channel, activations by row."""
    if is_among(module, config.get("modules_to_not_convert")):
        return None
    return Stored(weights=_FORMAT, activations=Activations.TOKEN)


def modelopt_stored_as(config: Config, module: str) -> Stored | None:
    """Same as `stored_as` for ModelOpt's config, which names an algorithm."""
    nested = config.get("quantization")
    own = nested if isinstance(nested, Mapping) else config  # the contents of hf_quant_config.json
    if is_among(module, own.get("ignore")) or is_among(module, own.get("exclude_modules")):
        return None
    field, name = f"{FIELD}.quant_algo", str(own.get("quant_algo")).upper()
    if name == _IN_BLOCKS:
        return Stored(weights=WeightFormat.E4M3_G128)
    if name == _IN_E2M1:
        return Stored(weights=in_e2m1(field))
    if name not in _ALGORITHMS:
        because = f": {_REFUSED[name]}" if name in _REFUSED else ""
        problem = f"is {name}{because}" if own.get("quant_algo") else "is missing"
        known = (*_ALGORITHMS, _IN_BLOCKS, _IN_E2M1)
        raise InvalidInput(field, problem, f"give a checkpoint of one of {', '.join(known)}")
    return Stored(weights=_FORMAT, activations=_ALGORITHMS[name])


def mxfp4_stored_as(config: Config, module: str) -> Stored | None:
    """Same as `stored_as` for gpt-oss's config."""
    if is_among(module, config.get("modules_to_not_convert")):
        return None
    return Stored(weights=in_e2m1(f"{FIELD}.quant_method"))
