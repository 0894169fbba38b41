"""compressed-tensors: int4 of groups, `pack-quantized`, fp8 of channels or tensors, `float-quantized`, and mxfp4.

weight_packed [rows, k / 8], eight codes along k per word, weight_scale [rows, k / group]; or weight [rows, k] in fp8,
weight_scale [rows, 1] or [1]. Source: compressed-tensors 0.17, `quant_method` compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints import fp8, mxfp4
from tuner.runtime.checkpoints.bits import Array, nibbles, words_of
from tuner.runtime.checkpoints.product import Product, Tensors


def read(tensors: Tensors, config: Mapping[str, Any], stored: WeightFormat) -> Product:
    """Reads a product.

    Raises:
        InvalidInput: the message names the tensor, and what is expected.
    """
    if stored.row.element is not None:
        return fp8.read(tensors, config, stored)
    if stored.row.has_powers:
        return mxfp4.read(tensors, config, stored)
    codes = nibbles(tensors.words("weight_packed"))
    rows, k = codes.shape
    shape, _ = tensors.need("weight_shape", (2,))
    if tuple(shape.tolist()) != (rows, k):
        raise InvalidInput(f"{tensors.name}.weight_shape", f"is {shape.tolist()}", f"use [{rows}, {k}]")
    groups = tensors.groups(k, stored)
    factors, dtype = tensors.factors("weight_scale", (rows, groups))
    if tensors.get("weight_g_idx") is not None:
        problem = "is in activation order (act order), but kernels read k in storage order"
        raise InvalidInput(f"{tensors.name}.weight_g_idx", problem, "quantise without actorder, or with static")
    zeros = None
    if stored.row.has_zeros:
        packed = tensors.words("weight_zero_point", (rows // 8, groups))
        zeros = np.ascontiguousarray(nibbles(np.ascontiguousarray(packed.T)).T)
    return Product(stored=stored, codes=codes, factors=factors, dtype=dtype, zeros=zeros)


def write(product: Product, config: Mapping[str, Any]) -> dict[str, Array]:
    """Inverse of `read`: bits by tensor."""
    if product.stored.row.element is not None:
        return fp8.write(product, config)
    if product.stored.row.has_powers:
        return mxfp4.write(product, config)
    assert product.factors is not None
    found = {"weight_packed": words_of(product.codes), "weight_scale": product.factors}
    if product.zeros is not None:
        found["weight_zero_point"] = np.ascontiguousarray(words_of(np.ascontiguousarray(product.zeros.T)).T)
    return found | {"weight_shape": np.array(product.codes.shape, dtype=np.int64)}
