"""One product's weights as a checkpoint has them, whatever its tensors are called."""

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
    """nn.Linear's [rows, k]."""

    stored: WeightFormat
    #: [rows, k] uint8.
    codes: Array
    #: [rows, k / group], bits of `dtype`, or bytes of powers of two; None where there are no groups.
    factors: Array | None = None
    #: Of factors of groups.
    dtype: Dtype | None = None
    #: [rows, k / group] uint8, 0 to 15; None where there are none.
    zeros: Array | None = None
    #: [rows] float32; None where channels have none.
    channels: Array | None = None
    #: What its input in 8 bits is multiplied by; None where the checkpoint does not say it.
    input_factor: float | None = None


class Tensors:
    """Those of a checkpoint, by name."""

    def __init__(self, tensors: Mapping[str, Any], name: str) -> None:
        """`name`: of the product's module."""
        self._tensors, self.name = tensors, name

    def name_of(self, what: str) -> str:
        """Of the whole tensor; some names go on without a point."""
        return f"{self.name}{what}" if what.startswith("_") else f"{self.name}.{what}"

    def get(self, what: str) -> tuple[Array, Dtype | None] | None:
        """Bits and element type, as `bits_of` has them; None where it is not there."""
        name = self.name_of(what)
        return bits_of(name, self._tensors[name]) if name in self._tensors else None

    def need(self, what: str, shape: tuple[int, ...] | None = None) -> tuple[Array, Dtype | None]:
        """The same.

        Raises:
            InvalidInput: it is not there, or is of another shape.
        """
        found = self.get(what)
        if found is None:
            raise InvalidInput(self.name_of(what), "is missing", "give all tensors of the module")
        if shape is not None and found[0].shape != shape:
            raise InvalidInput(f"{self.name}.{what}", f"is {list(found[0].shape)}", f"give {list(shape)}")
        return found

    def words(self, what: str, shape: tuple[int, int] | None = None) -> Array:
        """One of eight codes in an int32.

        Raises:
            InvalidInput: it is of another type; or as `need`.
        """
        found, _ = self.need(what, shape)
        if found.ndim != 2 or found.dtype not in (np.int32, np.uint32):
            problem = f"has {found.ndim} dimensions of {found.dtype}"
            raise InvalidInput(f"{self.name}.{what}", problem, "give rows of int32, eight codes in each")
        return found

    def groups(self, k: int, stored: WeightFormat) -> int:
        """Of a row of so many weights.

        Raises:
            InvalidInput: the last one is not whole.
        """
        if k % stored.row.group:
            problem = f"has {k} columns, no multiple of the {stored.row.group} of a group"
            raise InvalidInput(self.name, problem, f"quantise in groups that divide {k}")
        return k // stored.row.group

    def factors(self, what: str, shape: tuple[int, ...]) -> tuple[Array, Dtype | None]:
        """Scales, all of which are numbers above 0.

        Raises:
            InvalidInput: one is 0, below it, infinite or NaN; or as `need`.
        """
        bits, dtype = self.need(what, shape)
        values = known(bits, dtype)
        wrong = ~(np.isfinite(values) & (values > 0))
        if wrong.any():
            place = tuple(int(at) for at in np.argwhere(wrong)[0])
            problem = f"is {values[place]:g} at {list(place)}, of {int(wrong.sum())} that are no finite number above 0"
            raise InvalidInput(f"{self.name}.{what}", problem, "quantise the weights of that group again")
        return bits, dtype
