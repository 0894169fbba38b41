"""Sums in an epilogue, in float64, with bounds of their rounding errors, for references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tuner.core.problem.rows.dtype import Array, ArrayModule, OperandRow

#: Relative error of fp32 computations after the sums.
EPILOGUE_ERROR = 1e-6


@dataclass(frozen=True, kw_only=True)
class Known:
    """A tensor that an op reads."""

    #: Elements of the workload's type in float64; factors and integers unchanged.
    values: Array
    #: For an earlier op's output: the largest error that rounding can explain; None for inputs.
    tolerance: Array | None = None


class Tensors(Protocol):
    """The tensors of an op, by the names that its parts use."""

    def __getitem__(self, name: str) -> Known: ...


@dataclass(kw_only=True)
class Sums:
    """The sums, which each part modifies in turn."""

    #: NumPy, or CuPy.
    xp: ArrayModule
    #: The element type to which outputs are rounded.
    row: OperandRow
    #: [m, rows of W] at first, [m, n] in the end; float64.
    values: Array
    #: Maximum error of each value, in the same shape.
    error: Array
    #: Same shape, for sums over rows of W: the largest magnitude at which a vendor's library rounds a sum.
    held: Array

    def scale(self, factors: Array) -> None:
        """Multiplies by a broadcastable array."""
        self.values, self.error, self.held = (one * factors for one in (self.values, self.error, self.held))

    def add(self, others: Array) -> None:
        """Adds a broadcastable array."""
        self.values = self.values + others
        self.held = self.xp.maximum(self.held, self.xp.abs(self.values))

    def replace(self, values: Array, error: Array) -> None:
        """Replaces the values."""
        self.values, self.error = values, error

    def apply(self, host: Callable[[Array], Array], spread: Callable[[Array, Array], Array]) -> None:
        """Applies a function to each element; `spread` maps arguments and errors to the maximum error of the result."""
        self.replace(host(self.values), spread(self.values, self.error))

    def compute(self) -> None:
        """Adds the error of one fp32 operation."""
        self.error = self.error + EPILOGUE_ERROR * self.xp.abs(self.values)

    def round(self, sizes: Array | None = None) -> None:
        """Adds the error of rounding to the element type, for the magnitudes `sizes`, by default those of the
        values."""
        of = self.xp.abs(self.values) if sizes is None else sizes
        self.error = self.error + self.row.roundoff * of + self.row.smallest_step
