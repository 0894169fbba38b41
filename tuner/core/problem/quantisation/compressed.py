"""compressed-tensors: groups of layers, each with weights and activations. Source: compressed-tensors 0.17."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.core.problem.quantisation.said import (
    FIELD,
    Activations,
    Config,
    Stored,
    in_blocks_of,
    in_e2m1,
    in_groups_of,
    is_among,
    no_order,
)
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput

_FIELD = f"{FIELD}.config_groups"
#: The module class in the targets of a group with all products.
_ALL = "Linear"
#: The layouts of tensors that are read, and the name for several in one checkpoint.
_LAYOUTS, _MIXED = ("pack-quantized", "float-quantized", "naive-quantized"), "mixed-precision"
#: The remedies for weights and for inputs.
_REMEDY = "use int of 4 bits by group, or float of 8 by channel, tensor or block"
_INPUTS = "give float of 8 bits, dynamic by token or static by tensor, or none"


def stored_as(config: Config, module: str) -> Stored | None:
    """How a module's weights are stored; None if they are not quantised.

    Raises:
        InvalidInput: names the field that no kernel supports.
    """
    sparse = config.get("sparsity_config") or {}
    if sparse.get("format") not in (None, "dense"):
        problem = f"is {sparse['format']}: kernels read all weights"
        raise InvalidInput(f"{FIELD}.sparsity_config.format", problem, "give a checkpoint without sparsity")
    if (config.get("transform_config") or {}).get("config_groups"):
        problem = "rotates activations at run time, which no kernel does"
        raise InvalidInput(f"{FIELD}.transform_config", problem, "give a checkpoint without transforms")
    if is_among(module, config.get("ignore")):
        return None
    groups = config.get("config_groups")
    is_object = isinstance(groups, Mapping) and all(isinstance(group, Mapping) for group in groups.values())
    if not groups or not is_object:
        raise InvalidInput(
            _FIELD, "is not an object of groups of layers", "give the config as compressed-tensors wrote it"
        )
    fitting = {name: group for name, group in groups.items() if _holds(group, module)}
    found = {name: _stored(f"{_FIELD}.{name}", group, config.get("format")) for name, group in fitting.items()}
    if len(set(found.values())) > 1:
        problem = f"have mixed formats for {module}: {', '.join(f'{name} {one}' for name, one in found.items())}"
        raise InvalidInput(_FIELD, problem, "use a config in which only one group contains it")
    return next(iter(found.values()), None)


def _holds(group: Mapping[str, Any], module: str) -> bool:
    targets = group.get("targets") or (_ALL,)
    return _ALL in targets or is_among(module, targets)


def _stored(field: str, group: Mapping[str, Any], of_all: Any) -> Stored:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    if outputs := group.get("output_activations"):
        problem = f"are {_number(outputs.get('type'), outputs.get('num_bits'))}, but kernels store 16-bit outputs"
        raise InvalidInput(f"{field}.output_activations", problem, "give a checkpoint without them")
    kind, strategy = (weights.get("type"), weights.get("num_bits")), weights.get("strategy")
    layout, in_blocks = group.get("format") or of_all, kind == ("float", 8) and strategy == "block"
    activations = _activations(f"{field}.input_activations", inputs, in_blocks=in_blocks)
    if kind == ("float", 8) and strategy in ("channel", "tensor", "block"):
        _check_layout(layout)
        if not weights.get("symmetric", True):
            raise InvalidInput(f"{field}.weights.symmetric", "is false", "give fp8 weights without zero points")
        if not in_blocks:
            return Stored(weights=WeightFormat.E4M3, activations=activations)
        stored = in_blocks_of(f"{field}.weights.block_structure", weights.get("block_structure"))
        if activations is not Activations.BLOCK:
            activations = _sixteen(field, activations, "weights in blocks")
        return Stored(weights=stored, activations=activations)
    if kind == ("float", 4) and "mxfp4" in str(layout):
        return Stored(weights=in_e2m1(f"{field}.weights"), activations=_sixteen(field, activations, "4-bit weights"))
    if kind != ("int", 4) or strategy != "group":
        problem = f"are {_number(*kind)} by {strategy}, which no kernel supports"
        raise InvalidInput(f"{field}.weights", problem, _REMEDY)
    _check_layout(layout)
    if weights.get("actorder") not in (None, False, "static", "weight"):
        raise no_order(f"{field}.weights.actorder", weights["actorder"])
    has_zeros = not weights.get("symmetric", True)
    if activations is not Activations.TOKEN or has_zeros:
        activations = _sixteen(field, activations, f"4-bit weights{' and zero points' if has_zeros else ''}")
    size = in_groups_of(
        f"{field}.weights.group_size",
        weights.get("group_size"),
        has_zeros=has_zeros,
        element_bits=16 if activations is Activations.SIXTEEN else 8,
    )
    return Stored(weights=size, activations=activations)


def _check_layout(layout: Any) -> None:
    """Checks the name of a layout, which may be missing; or, if the checkpoint mixes layouts, the name for that."""
    if layout not in (None, _MIXED, *_LAYOUTS):
        raise InvalidInput(f"{FIELD}.format", f"is {layout}: such tensors are not read", f"use {' or '.join(_LAYOUTS)}")


def _sixteen(field: str, activations: Activations, weights: str) -> Activations:
    if activations is not Activations.SIXTEEN:
        problem = f"are {activations}: {weights} with fp8 activations are not supported"
        raise InvalidInput(f"{field}.input_activations", problem, "give a checkpoint without them")
    return activations


def _activations(field: str, inputs: Any, *, in_blocks: bool) -> Activations:
    """How a product's inputs are stored; those in groups only with weights in blocks."""
    if not inputs:
        return Activations.SIXTEEN
    kind, how = (inputs.get("type"), inputs.get("num_bits")), (bool(inputs.get("dynamic")), inputs.get("strategy"))
    by = {(True, "token"): Activations.TOKEN, (False, "tensor"): Activations.TENSOR}
    if in_blocks and kind == ("float", 8) and how == (True, "group"):
        return Activations.BLOCK
    if kind == ("float", 8) and how in by:
        return by[how]
    words = f"{'dynamic' if how[0] else 'static'} by {how[1]}"
    raise InvalidInput(field, f"are {_number(*kind)}, {words}, which no kernel supports", _INPUTS)


def _number(kind: Any, bits: Any) -> str:
    """An element, as text."""
    short = {"float": "fp", "int": "int"}.get(str(kind))
    return f"{short}{bits}" if short else f"{bits}-bit {kind}"
