"""compressed-tensors: int4 of groups, `pack-quantized`, and fp8 of channels or tensors, `float-quantized`.

weight_packed [rows, k / 8], eight codes of k in a word, weight_scale [rows, k / group]; or weight [rows, k] in fp8,
weight_scale [rows, 1] or [1]. Source: compressed-tensors 0.17, `quant_method` compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints import fp8
from tuner.runtime.checkpoints.bits import Array, nibbles, words_of
from tuner.runtime.checkpoints.gptq import in_groups_of
from tuner.runtime.checkpoints.product import Product, Tensors

METHOD = "compressed-tensors"
_FIELD = "quantization_config.config_groups"


def stored_in(config: Mapping[str, Any]) -> WeightFormat:
    """The format of its weights; of several groups of layers all must have one.

    Raises:
        InvalidInput: names the field of the config that has no kernel.
    """
    found = {_stored_in(name, group.get("weights") or {}) for name, group in config.get("config_groups", {}).items()}
    if len(found) != 1:
        problem = f"have {len(found)} formats of weights"
        raise InvalidInput(_FIELD, problem, "use a config whose groups of layers have one")
    return found.pop()


def _stored_in(name: str, weights: Mapping[str, Any]) -> WeightFormat:
    field = f"{_FIELD}.{name}.weights"
    kind, strategy = (weights.get("type"), weights.get("num_bits")), weights.get("strategy")
    if kind == ("float", 8) and strategy in ("channel", "tensor"):
        return WeightFormat.E4M3
    if kind != ("int", 4) or strategy != "group":
        problem = f"are {weights.get('num_bits')}-bit {weights.get('type')} by {strategy}"
        raise InvalidInput(field, problem, "use int of 4 bits by group, or float of 8 by channel or tensor")
    if weights.get("actorder") not in (None, "static", "weight"):
        problem = f"is {weights['actorder']}: groups lie in an order of their own, and kernels read k as it lies"
        raise InvalidInput(f"{field}.actorder", problem, "quantise without it, or with actorder static")
    has_zeros = not weights.get("symmetric", True)
    return in_groups_of(f"{field}.group_size", weights.get("group_size"), has_zeros=has_zeros)


def read(tensors: Tensors, config: Mapping[str, Any]) -> Product:
    """A product.

    Raises:
        InvalidInput: names the tensor, and what would be right.
    """
    if (stored := stored_in(config)) is WeightFormat.E4M3:
        return fp8.of_channels(tensors)
    words, _ = tensors.need("weight_packed")
    codes = nibbles(words)
    rows, k = codes.shape
    shape, _ = tensors.need("weight_shape", (2,))
    if tuple(shape.tolist()) != (rows, k):
        raise InvalidInput(f"{tensors.name}.weight_shape", f"is {shape.tolist()}", f"use [{rows}, {k}]")
    factors, dtype = tensors.factors("weight_scale", (rows, k // stored.row.group))
    if tensors.get("weight_g_idx") is not None:
        problem = "has groups in an order of their own (act order), and kernels read k as it lies"
        raise InvalidInput(f"{tensors.name}.weight_g_idx", problem, "quantise without actorder, or with static")
    zeros = None
    if stored.row.has_zeros:
        packed, _ = tensors.need("weight_zero_point", (rows // 8, k // stored.row.group))
        zeros = np.ascontiguousarray(nibbles(np.ascontiguousarray(packed.T)).T)
    return Product(stored=stored, codes=codes, factors=factors, dtype=dtype, zeros=zeros)


def write(product: Product, config: Mapping[str, Any]) -> dict[str, Array]:
    """Inverse of `read`: bits by tensor."""
    if product.factors is None:
        return fp8.write(product, config)
    found = {"weight_packed": words_of(product.codes), "weight_scale": product.factors}
    if product.zeros is not None:
        found["weight_zero_point"] = np.ascontiguousarray(words_of(np.ascontiguousarray(product.zeros.T)).T)
    return found | {"weight_shape": np.array(product.codes.shape, dtype=np.int64)}
