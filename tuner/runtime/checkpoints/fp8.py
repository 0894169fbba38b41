"""fp8 e4m3 with scales per channel or per tensor: weight [rows, k], and weight_scale [rows, 1], [rows] or with one
element; or with scales of blocks of 128 x 128: weight_scale_inv [rows / 128, k / 128] of `quant_method` fp8, otherwise
weight_scale.

Source: vLLM's `quant_method` fp8, ModelOpt's FP8 and FP8_PB_WO, compressed-tensors' float-quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.core.problem.quantisation.methods import method_of
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints import mxfp4
from tuner.runtime.checkpoints.bits import Array, known
from tuner.runtime.checkpoints.product import Product, Tensors


def read(tensors: Tensors, config: Mapping[str, Any], stored: WeightFormat) -> Product:
    """Reads a product.

    Raises:
        InvalidInput: the message names the tensor, and what is expected.
    """
    if stored.row.has_powers:
        return mxfp4.read(tensors, config, stored)
    codes, dtype = tensors.need("weight")
    if dtype is not stored.row.element or codes.ndim != 2:
        what = f"{codes.ndim} dimensions of {dtype or codes.dtype}"
        raise InvalidInput(f"{tensors.name}.weight", f"has {what}", "use [rows, k] of float8_e4m3fn")
    if (spoilt := codes & 0x7F == 0x7F).any():
        row, column = (int(at[0]) for at in np.nonzero(spoilt))
        raise InvalidInput(f"{tensors.name}.weight", f"is NaN at [{row}, {column}]", "quantise that row again")
    if stored.row.group:
        return Product(stored=stored, codes=codes, factors=_of_blocks(tensors, config, stored, codes.shape))
    rows = codes.shape[0]
    scale, _ = tensors.need("weight_scale")
    allowed = {(rows, 1): rows, (rows,): rows, (1,): 1, (): 1, (1, 1): 1}
    if scale.shape not in allowed:
        raise InvalidInput(f"{tensors.name}.weight_scale", f"is {list(scale.shape)}", f"use [{rows}, 1], or one factor")
    bits, kind = tensors.factors("weight_scale", scale.shape)
    channels = np.broadcast_to(known(bits, kind).astype(np.float32).reshape(-1), (rows,))
    given = tensors.get("input_scale")
    held = None if given is None else float(known(*tensors.factors("input_scale", given[0].shape)).max())
    return Product(stored=stored, codes=codes, channels=np.ascontiguousarray(channels), input_factor=held)


def write(product: Product, config: Mapping[str, Any]) -> dict[str, Array]:
    """The original weights, and the factors of each row and of the input: always float32, whatever they were."""
    if product.stored.row.has_powers:
        return mxfp4.write(product, config)
    if product.factors is not None:
        scales = product.factors.view(np.float32)[:: product.stored.row.group]
        return {"weight": product.codes, _of_block(config): scales}
    assert product.channels is not None
    given = {} if product.input_factor is None else {"input_scale": np.array([product.input_factor], np.float32)}
    return {"weight": product.codes, "weight_scale": product.channels[:, None], **given}


def _of_block(config: Mapping[str, Any]) -> str:
    """The name of the scales of blocks."""
    return "weight_scale_inv" if method_of(config) == "fp8" else "weight_scale"


def _of_blocks(tensors: Tensors, config: Mapping[str, Any], stored: WeightFormat, shape: tuple[int, ...]) -> Array:
    """The bits of the float32 scale of each row's groups, from those of blocks. ModelOpt's have two more dimensions."""
    side, name = stored.row.group, _of_block(config)
    (rows, k), groups = shape, tensors.groups(shape[1], stored)
    blocks = -(-rows // side)
    scale, _ = tensors.need(name)
    if scale.shape not in ((blocks, groups), (blocks, 1, groups, 1)):
        what = f"is {list(scale.shape)}, for a weight of [{rows}, {k}]"
        raise InvalidInput(tensors.name_of(name), what, f"use [{blocks}, {groups}], one for a block of {side} x {side}")
    bits, kind = tensors.factors(name, scale.shape)
    values = known(bits, kind).astype(np.float32).reshape(blocks, groups)
    return np.ascontiguousarray(np.repeat(values, side, axis=0)[:rows]).view(np.uint32)
