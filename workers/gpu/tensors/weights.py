"""Weights of a trial in their storage format: elements, or codes with fewer bits."""

from __future__ import annotations

from typing import Any

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue import Product
from tuner.core.problem.tile_op import TileOp

from .op_data import draw_bits, from_bits

Array = Any  # a cupy.ndarray; CuPy has no type annotations


def draw_weights(random: Any, op: TileOp, dtype: Dtype) -> Array:
    """Weights that an epilogue scales have deviation 1, like quantised ones; few of them are small."""
    shape = (op.weight_rows, op.k)
    if op.weights is None:
        is_scaled = any(part.brings_size for part in op.parts)
        return draw_bits(random, shape, 1.0 if is_scaled else max(1, op.k) ** -0.5, dtype)
    row, factors = op.weights.row, None
    if row.group:
        factors = 0.5 + 1.5 * random.random((shape[0], op.k // row.group), dtype=cupy.float32)
    return row.drawn(cupy, random.standard_normal(shape, dtype=cupy.float32), factors, dtype.row)


def known_weights(op: Product, array: Array, dtype: Dtype) -> Array:
    """The values that they represent, [rows of W, k] float64."""
    if op.weights is None:
        return from_bits(array, dtype, as_type=cupy.float64)
    return op.weights.row.known(cupy, array, op.k, dtype.row)
