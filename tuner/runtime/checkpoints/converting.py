"""From tensors of a checkpoint to what a kernel of a chain is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import OperandRow
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints import awq, compressed, fp8, gptq
from tuner.runtime.checkpoints.bits import Array
from tuner.runtime.checkpoints.product import Product, Tensors

#: By what configs call the method.
_METHODS: dict[str, ModuleType] = {
    gptq.METHOD: gptq,
    awq.METHOD: awq,
    compressed.METHOD: compressed,
    fp8.METHOD: fp8,
    fp8.MODELOPT: fp8,
}
#: Why others are refused.
_REFUSED = {
    "mxfp4": "kernels have no codes of e2m1",
    "bitsandbytes": "its codes are of a table of their own",
}


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A product as a kernel reads it: ``<op>.w``, and with factors of channels ``<op>.channel_scale_factors``."""

    stored: WeightFormat
    #: [rows, bytes of a row] uint8: of several products one after the other.
    weights: Array
    #: Weights of a row.
    k: int
    #: Of factors of groups: the workload's, whose bits they are; None where there are none.
    dtype: Dtype | None
    #: [rows] float32; None where channels have none.
    channels: Array | None
    #: Rows of each product.
    rows: tuple[int, ...]


def method_of(config: Mapping[str, Any]) -> ModuleType:
    """What reads the tensors of a checkpoint.

    Raises:
        InvalidInput: nothing here does.
    """
    method = str(config.get("quant_method", "")).lower()
    if method in _METHODS:
        return _METHODS[method]
    because = f": {_REFUSED[method]}" if method in _REFUSED else ""
    problem = f"is {method or 'missing'}{because}"
    raise InvalidInput("quantization_config.quant_method", problem, f"use one of {', '.join(_METHODS)}")


def convert(tensors: Mapping[str, Any], names: str | Sequence[str], config: Mapping[str, Any]) -> Converted:
    """The product of a module, or of several above each other: of a gated op the gate first.

    Args:
        tensors: of a checkpoint, by name, on the host: NumPy's, PyTorch's, or of `ml_dtypes`.
        names: of the modules, e.g. ``model.layers.0.mlp.down_proj``.
        config: the model's ``quantization_config``.

    Raises:
        InvalidInput: names the field or the tensor that no kernel takes, and what would be right. Nothing is changed.
    """
    reader = method_of(config)
    found = [reader.read(Tensors(tensors, name), config) for name in ([names] if isinstance(names, str) else names)]
    first = found[0]
    for name, other in zip(names, found, strict=False):
        if (other.codes.shape[1], other.dtype) != (first.codes.shape[1], first.dtype):
            problem = f"has {other.codes.shape[1]} columns and factors of {other.dtype}, and {names[0]} others"
            raise InvalidInput(str(name), problem, f"use {first.codes.shape[1]} and {first.dtype}")
    factors = [one.factors for one in found if one.factors is not None]
    channels = [one.channels for one in found if one.channels is not None]
    zeros = [one.zeros for one in found if one.zeros is not None]
    codes = np.concatenate([one.codes for one in found])
    k, row = codes.shape[1], first.stored.row
    if k % max(row.chunk, row.group):
        unit = max(row.chunk, row.group)
        raise InvalidInput(str(names), f"has {k} columns", f"use a multiple of {unit}, as {first.stored} has them")
    points = row.raised(np, np.concatenate(zeros), _element(first.dtype)) if zeros else None
    return Converted(
        stored=first.stored,
        weights=row.packed(np, codes, np.concatenate(factors) if factors else None, points),
        k=k,
        dtype=first.dtype,
        channels=np.concatenate(channels) if channels else None,
        rows=tuple(len(one.codes) for one in found),
    )


def restored(converted: Converted, config: Mapping[str, Any]) -> list[dict[str, Array]]:
    """Of each module its tensors' bits, by the ends of their names: inverse of `convert`."""
    row, writer = converted.stored.row, method_of(config)
    codes, factors, raised = row.unpacked(np, converted.weights, converted.k)
    zeros = None if raised is None else (raised - row.raised(np, np.zeros(1, np.uint8), _element(converted.dtype)))
    bounds = np.cumsum(converted.rows)[:-1]
    of_rows = [None] * len(converted.rows)
    parts = zip(
        np.split(codes, bounds),
        of_rows if factors is None else np.split(factors, bounds),
        of_rows if converted.channels is None else np.split(converted.channels, bounds),
        of_rows if zeros is None else np.split(zeros.astype(np.uint8), bounds),
        strict=True,
    )
    made = (
        Product(stored=converted.stored, codes=one, factors=two, dtype=converted.dtype, channels=three, zeros=four)
        for one, two, three, four in parts
    )
    return [writer.write(one, config) for one in made]


def _element(dtype: Dtype | None) -> OperandRow:
    """Of factors of groups, which are there."""
    assert dtype is not None
    return dtype.row
