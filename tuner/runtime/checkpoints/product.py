"""One product's weights in a checkpoint, independent of its tensors' names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints.bits import Array, bits_of, known


@dataclass(frozen=True, kw_only=True)
class Product:
    """The quantised weight of an nn.Linear: [rows, k]."""

    stored: WeightFormat
    #: [rows, k] uint8.
    codes: Array
    #: [rows, k / group], bits of `dtype`, or bytes of powers of two; None if there are no groups.
    factors: Array | None = None
    #: The dtype of the groups' factors.
    dtype: Dtype | None = None
    #: [rows, k / group] uint8, 0 to 15; None if there are none.
    zeros: Array | None = None
    #: [rows] float32; None if there are no scales per channel.
    channels: Array | None = None
    #: The factor of its 8-bit input; None if the checkpoint does not contain it.
    input_factor: float | None = None


class Tensors:
    """The tensors of a checkpoint, by name."""

    def __init__(self, tensors: Mapping[str, Any], name: str) -> None:
        """`name`: the name of the product's module."""
        self._tensors, self.name = tensors, name

    def name_of(self, what: str) -> str:
        """The full name of a tensor; suffixes that begin with an underscore are joined without a dot."""
        return f"{self.name}{what}" if what.startswith("_") else f"{self.name}.{what}"

    def get(self, what: str) -> tuple[Array, Dtype | None] | None:
        """Bits and element type, as from `bits_of`; None if missing."""
        name = self.name_of(what)
        return bits_of(name, self._tensors[name]) if name in self._tensors else None

    def need(self, what: str, shape: tuple[int, ...] | None = None) -> tuple[Array, Dtype | None]:
        """Bits and element type of a tensor that must exist.

        Raises:
            InvalidInput: it is missing, or has a different shape.
        """
        found = self.get(what)
        if found is None:
            raise InvalidInput(self.name_of(what), "is missing", "use all tensors of the module")
        if shape is not None and found[0].shape != shape:
            raise InvalidInput(f"{self.name}.{what}", f"is {list(found[0].shape)}", f"use {list(shape)}")
        return found

    def words(self, what: str, shape: tuple[int, int] | None = None) -> Array:
        """A tensor with eight codes per int32.

        Raises:
            InvalidInput: it has a different type; see also `need`.
        """
        found, _ = self.need(what, shape)
        if found.ndim != 2 or found.dtype not in (np.int32, np.uint32):
            problem = f"has {found.ndim} dimensions of {found.dtype}"
            raise InvalidInput(f"{self.name}.{what}", problem, "give rows of int32, eight codes in each")
        return found

    def groups(self, k: int, stored: WeightFormat) -> int:
        """The number of groups in a row of `k` weights.

        Raises:
            InvalidInput: the last one is incomplete.
        """
        if k % stored.row.group:
            problem = f"has {k} columns, which is not a multiple of the group size {stored.row.group}"
            raise InvalidInput(self.name, problem, f"quantise in groups that divide {k}")
        return k // stored.row.group

    def factors(self, what: str, shape: tuple[int, ...]) -> tuple[Array, Dtype | None]:
        """Scales, all of which are positive.

        Raises:
            InvalidInput: one is 0, negative, infinite, NaN or of another type; or as for `need`.
        """
        bits, dtype = self.need(what, shape)
        if dtype is None and bits.dtype.kind != "f":
            raise InvalidInput(self.name_of(what), f"has elements of {bits.dtype}", "give float32, float16 or bfloat16")
        values = known(bits, dtype)
        wrong = ~(np.isfinite(values) & (values > 0))
        if wrong.any():
            place = tuple(int(at) for at in np.argwhere(wrong)[0])
            problem = f"is {values[place]:g} at {list(place)}, of {int(wrong.sum())} that are not finite and above 0"
            raise InvalidInput(f"{self.name}.{what}", problem, "quantise the weights of that group again")
        return bits, dtype
