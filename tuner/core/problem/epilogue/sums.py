"""Sums on their way through an epilogue, in float64, and what rounding may add to them: what references are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tuner.core.problem.rows.dtype import Array, ArrayModule, OperandRow

#: Relative error of what is computed in fp32 after the sums.
EPILOGUE_ERROR = 1e-6


@dataclass(frozen=True, kw_only=True)
class Known:
    """A tensor that an op reads."""

    #: Elements of the workload's type in float64; factors and integers as they are.
    values: Array
    #: Of an earlier op's output: the largest error that rounding can explain; None for what is given.
    tolerance: Array | None = None


class Tensors(Protocol):
    """The tensors of an op, by the names that its parts give them."""

    def __getitem__(self, name: str) -> Known: ...


@dataclass(kw_only=True)
class Sums:
    """Each part changes it in its turn."""

    #: NumPy, or CuPy.
    xp: ArrayModule
    #: The element type, by which outputs are rounded.
    row: OperandRow
    #: [m, rows of W], then [m, n]; float64.
    values: Array
    #: Error of the same shape: how far they may be off, at most.
    error: Array
    #: Of the same shape, while rows of W are summed: the largest size in which a vendor's library rounds a sum.
    held: Array

    def scale(self, factors: Array) -> None:
        """Multiplies by what broadcasts."""
        self.values, self.error, self.held = (one * factors for one in (self.values, self.error, self.held))

    def add(self, others: Array) -> None:
        """Adds what broadcasts."""
        self.values = self.values + others
        self.held = self.xp.maximum(self.held, self.xp.abs(self.values))

    def replace(self, values: Array, error: Array) -> None:
        """Others stand in their place."""
        self.values, self.error = values, error

    def apply(self, host: Callable[[Array], Array], spread: Callable[[Array, Array], Array]) -> None:
        """A function of each element; `spread` says by arguments and errors how far its value may be off."""
        self.replace(host(self.values), spread(self.values, self.error))

    def compute(self) -> None:
        """What fp32 arithmetic adds to the error, once it is done."""
        self.error = self.error + EPILOGUE_ERROR * self.xp.abs(self.values)

    def round(self, sizes: Array | None = None) -> None:
        """What rounding to the element type adds, of these sizes, or else of the values."""
        of = self.xp.abs(self.values) if sizes is None else sizes
        self.error = self.error + self.row.roundoff * of + self.row.smallest_step
