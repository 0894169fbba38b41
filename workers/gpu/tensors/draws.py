"""What the tensors of a trial are made of, on the card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cupy

from tuner.core.plan.graph.norm_slots import slot_stride
from tuner.core.problem.dtype import Dtype

from .op_data import draw_bits, from_bits

Array = Any  # a cupy.ndarray; CuPy has no type annotations


class DrawsOnCard:
    """`Draws` of one generator, for one slot or one check."""

    def __init__(self, random: Any, dtype: Dtype, inputs: Mapping[str, Array]) -> None:
        """`inputs` are what is drawn already."""
        self._random, self._dtype, self._inputs = random, dtype, inputs

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Elements, as bits."""
        return draw_bits(self._random, shape, 1.0, self._dtype)

    def factors(self, shape: tuple[int, ...]) -> Array:
        """fp32, from 0.5 to 2."""
        return 0.5 + 1.5 * self._random.random(shape, dtype=cupy.float32)

    def integers(self, shape: tuple[int, ...], least: int, most: int) -> Array:
        """int32."""
        return self._random.integers(least, most, shape, dtype=cupy.int32, endpoint=True)

    def squares(self, name: str) -> Array | None:
        """Sums of the squares of an input's rows, with room for a whole vector behind them."""
        if name not in self._inputs:
            return None
        sums = (from_bits(self._inputs[name], self._dtype, as_type=cupy.float64) ** 2).sum(axis=1)
        padded = cupy.zeros(slot_stride(sums.size), dtype=cupy.float32)
        padded[: sums.size] = sums
        return padded
