"""The inputs of a feed-forward block's kernel from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tuner.core.problem.epilogue.added import added_parts
from tuner.core.problem.quantisation import Activations, stored_as
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints.bits import Array
from tuner.runtime.checkpoints.converting import Converted, convert

Tensor = Mapping[str, Any]


def feed_forward(
    tensors: Mapping[str, Any],
    config: Mapping[str, Any],
    kernel: Mapping[str, Tensor],
    *,
    up: str | Sequence[str],
    down: str,
    hidden_factor: float | None = None,
) -> dict[str, Array]:
    """Weights and factors by the names of the kernel's tensors, in its layout: codes are uint8, factors float32.

    Args:
        tensors: the checkpoint's tensors, as for `convert`.
        config: the model's ``quantization_config``.
        kernel: `Program.tensors` of a pack's chain, or of a downloaded artifact.
        up: modules whose rows are stacked, e.g. gate and up projection.
        down: the module that reads their output.
        hidden_factor: the divisor of the intermediate, if it is stored in 8 bits and the checkpoint, with dynamic
            activations, has none.

    Raises:
        InvalidInput: the checkpoint does not fit the kernel, or as for `convert`. Nothing is changed.
    """
    first, second = _products(kernel)
    both = {first: convert(tensors, up, config), second: convert(tensors, down, config)}
    found = {f"{name}.w": _weights(f"{name}.w", one, kernel) for name, one in both.items()}
    inputs = {first: 1.0, second: 1.0}
    if f"{first}.output_scale_factor" in kernel:
        inputs[second] = _hidden_factor(both[second], hidden_factor)
        found[f"{first}.output_scale_factor"] = np.array([inputs[second]], np.float32)
        if _is_static(config, up):
            inputs[first] = _needed(both[first].input_factor, f"{up} input_scale")
    for name, one in both.items():
        for blocks in _scales_of_blocks(name, kernel):
            found[blocks] = one.blocks
        factors = f"{name}.channel_scale_factors"
        if one.channels is None and factors in kernel and f"{first}.output_scale_factor" in kernel:
            # Only the factor of the intermediate: weights have scales of groups.
            found[factors] = np.full(sum(one.rows), inputs[name], np.float32)
            continue
        if (one.channels is not None) != (factors in kernel):
            has = "has" if one.channels is not None else "has no"
            raise InvalidInput(factors, f"the checkpoint {has} scales per channel", "tune for this checkpoint's format")
        if one.channels is not None:
            found[factors] = (one.channels * np.float32(inputs[name])).astype(np.float32)
    return found


def _is_static(config: Mapping[str, Any], up: str | Sequence[str]) -> bool:
    """Whether the checkpoint contains the factor of the block's input; otherwise each call passes one per row."""
    stored = stored_as(config, up if isinstance(up, str) else up[0])
    return stored is not None and stored.activations is Activations.TENSOR


def _products(kernel: Mapping[str, Tensor]) -> tuple[str, str]:
    names = [name.removesuffix(".w") for name, one in kernel.items() if one["role"] == "weight" and name.endswith(".w")]
    if len(names) != 2:
        problem = f"has weights of {', '.join(names) or 'no product'}"
        raise InvalidInput("kernel", problem, "give the tensors of a feed-forward block's kernel")
    return names[0], names[1]


def _scales_of_blocks(op: str, kernel: Mapping[str, Tensor]) -> list[str]:
    """The kernel's tensors with the scales of an op's blocks of weights."""
    owned = ((part, own) for part in added_parts().values() for own in part.owns if own.is_of_blocks)
    return [name for part, own in owned if (name := f"{op}.{part.name}_{own.name}") in kernel]


def _weights(name: str, one: Converted, kernel: Mapping[str, Tensor]) -> Array:
    """A product's weights, in the format for which the kernel was tuned.

    Raises:
        InvalidInput: they have a different format.
    """
    row, rows, wanted = one.stored.row, sum(one.rows), kernel[name]
    factors = str(one.dtype) if row.group else ""
    has = {**row.about(one.k, factors), "rows": rows}
    if stored := wanted.get("stored"):
        needs = {**stored, "rows": wanted["shape"][0]}
    elif wanted["dtype"] == row.element and bool(row.group) == bool(_scales_of_blocks(name.removesuffix(".w"), kernel)):
        # Codes are its elements, in their order.
        needs = {**has, "rows": wanted["shape"][0], "k": wanted["shape"][1]}
    else:
        problem = f"is {wanted['dtype']} in the kernel, but {one.stored} in the checkpoint"
        raise InvalidInput(name, problem, "tune for this checkpoint, as tune-model does by its config")
    if other := [what for what in needs if needs[what] != has.get(what)]:
        words = ", ".join(f"{what} {has.get(what)!r}, but the kernel reads {needs[what]!r}" for what in other)
        raise InvalidInput(name, f"has {words}", "tune for this checkpoint, as tune-model does by its config")
    return one.weights if stored else one.elements


def _hidden_factor(down: Converted, given: float | None) -> float:
    """The factor of the intermediate when it is read.

    Raises:
        InvalidInput: neither the checkpoint nor the caller provides it.
    """
    if given is not None and not (np.isfinite(given) and given > 0):
        raise InvalidInput("hidden_factor", f"is {given}", "give a number above 0")
    return _needed(down.input_factor if given is None else given, "hidden_factor")


def _needed(factor: float | None, name: str) -> float:
    if factor is None:
        largest = "its largest size over 448"
        raise InvalidInput(name, "is missing: with 8-bit activations, kernels need a static factor", f"give {largest}")
    return factor
