"""e2m1 in groups of 32 with a power of two (e8m0) each: two codes of k in a byte, the lower bits first.

weight_packed [rows, k / 2], or weight in ModelOpt, and weight_scale [rows, k / 32], uint8; or for one expert of gpt-oss
<name>_blocks [rows, k / 32, 16], <name>_scales. Source: compressed-tensors 0.17, `mxfp4-pack-quantized`; transformers'
`mxfp4`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.core.problem.quantisation.methods import method_of
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.weights.mxfp4 import LARGEST_POWER
from tuner.core.problem.weights.row import POWER_EXCESS
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints.bits import Array
from tuner.runtime.checkpoints.product import Product, Tensors

METHOD = "mxfp4"
#: Codes and scales, by what configs call the method: those of gpt-oss follow the module's name without a dot.
_NAMES = {METHOD: ("_blocks", "_scales"), **dict.fromkeys(("modelopt", "modelopt_fp4"), ("weight", "weight_scale"))}
_PACKED = ("weight_packed", "weight_scale")


def read(tensors: Tensors, config: Mapping[str, Any], stored: WeightFormat) -> Product:
    """Reads a product.

    Raises:
        InvalidInput: the message names the tensor, and what is expected.
    """
    codes_name, scales_name = _names(config)
    held, scales = (_bytes(tensors, name) for name in (codes_name, scales_name))
    rows, groups = scales.shape if scales.ndim == 2 else (0, 0)
    if held.size != rows * groups * stored.row.group // 2 or held.shape[0] != rows:
        problem = f"is {list(held.shape)}, and {scales_name} {list(scales.shape)}"
        raise InvalidInput(tensors.name_of(codes_name), problem, "give [rows, k / 2] and [rows, k / 32]")
    if (wrong := scales > LARGEST_POWER).any():
        row, group = (int(at) for at in np.argwhere(wrong)[0])
        size = "NaN" if scales[row, group] == 255 else f"2^{int(scales[row, group]) - POWER_EXCESS}"
        problem = f"is {size} at [{row}, {group}], of {int(wrong.sum())} that are above 2"
        raise InvalidInput(tensors.name_of(scales_name), problem, "quantise the weights of that group again")
    laid = held.reshape(rows, -1)
    codes = np.stack([laid & 15, laid >> 4], axis=2).reshape(rows, -1)
    return Product(stored=stored, codes=codes, factors=scales)


def write(product: Product, config: Mapping[str, Any]) -> dict[str, Array]:
    """Inverse of `read`: bits by tensor."""
    assert product.factors is not None
    codes_name, scales_name = _names(config)
    held = product.codes[:, 0::2] | product.codes[:, 1::2] << 4
    if method_of(config) == METHOD:
        held = held.reshape(*product.factors.shape, -1)
    return {codes_name: held, scales_name: product.factors}


def _names(config: Mapping[str, Any]) -> tuple[str, str]:
    return _NAMES.get(method_of(config), _PACKED)


def _bytes(tensors: Tensors, name: str) -> Array:
    found, _ = tensors.need(name)
    if found.dtype != np.uint8:
        raise InvalidInput(tensors.name_of(name), f"is of {found.dtype}", "give uint8")
    return found
