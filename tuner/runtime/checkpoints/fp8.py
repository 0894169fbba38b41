"""fp8 e4m3 of channels or of whole tensors: weight [rows, k], and weight_scale [rows, 1], [rows] or of one element.

Source: vLLM's `quant_method` fp8 without blocks, ModelOpt's FP8, compressed-tensors' float-quantized. Factors of blocks
(`weight_block_size`, weight_scale_inv: DeepSeek) have no kernel here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints.bits import Array, known
from tuner.runtime.checkpoints.product import Product, Tensors

METHOD = "fp8"
MODELOPT = "modelopt"


def stored_in(config: Mapping[str, Any]) -> WeightFormat:
    """The format of its weights.

    Raises:
        InvalidInput: names the field of the config that has no kernel.
    """
    if block := config.get("weight_block_size"):
        problem = f"is {block}: no kernel here has factors of blocks"
        raise InvalidInput("quantization_config.weight_block_size", problem, "quantise by channel or by tensor")
    kind = config.get("quant_algo") or config.get("fmt") or "e4m3"
    if str(kind).lower() not in ("e4m3", "fp8"):
        raise InvalidInput("quantization_config.quant_algo", f"is {kind}", "use a checkpoint of FP8 (e4m3)")
    return WeightFormat.E4M3


def read(tensors: Tensors, config: Mapping[str, Any]) -> Product:
    """A product.

    Raises:
        InvalidInput: names the field or the tensor, and what would be right.
    """
    stored_in(config)
    return of_channels(tensors)


def of_channels(tensors: Tensors) -> Product:
    """The same, whatever the config.

    Raises:
        InvalidInput: names the tensor, and what would be right.
    """
    codes, dtype = tensors.need("weight")
    if dtype is not WeightFormat.E4M3.row.element or codes.ndim != 2:
        what = f"{codes.ndim} dimensions of {dtype or codes.dtype}"
        raise InvalidInput(f"{tensors.name}.weight", f"has {what}", "use [rows, k] of float8_e4m3fn")
    if (spoilt := codes & 0x7F == 0x7F).any():
        row, column = (int(at[0]) for at in np.nonzero(spoilt))
        raise InvalidInput(f"{tensors.name}.weight", f"is NaN at [{row}, {column}]", "quantise that row again")
    rows = codes.shape[0]
    scale, _ = tensors.need("weight_scale")
    allowed = {(rows, 1): rows, (rows,): rows, (1,): 1, (): 1, (1, 1): 1}
    if scale.shape not in allowed:
        raise InvalidInput(f"{tensors.name}.weight_scale", f"is {list(scale.shape)}", f"use [{rows}, 1], or one factor")
    bits, kind = tensors.factors("weight_scale", scale.shape)
    channels = np.broadcast_to(known(bits, kind).astype(np.float32).reshape(-1), (rows,))
    return Product(stored=WeightFormat.E4M3, codes=codes, channels=np.ascontiguousarray(channels))


def write(product: Product, config: Mapping[str, Any]) -> dict[str, Array]:
    """The weights as they were, and a float32 factor for each row: what [1] or 16 bits said of all of them."""
    del config
    assert product.channels is not None
    return {"weight": product.codes, "weight_scale": product.channels[:, None]}
