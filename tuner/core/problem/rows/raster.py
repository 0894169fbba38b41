"""The properties of a raster: the order in which an op's tiles are run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tuner.core.problem.rows.added import FIRST_ADDED_NUMBER
from tuner.core.problem.rows.dtype import Array, ArrayModule
from tuner.errors import InvalidInput

_NAME = re.compile(r"[a-z]+")


@dataclass(frozen=True, kw_only=True)
class RasterRow:
    """One curve over a grid of tiles."""

    #: Its name in JSON and in a schedule's line: lower-case letters.
    name: str
    #: If two names mean the same path, the one with the lower number is used. Packages take numbers from 128 on.
    number: int
    #: A description, with ``{width}`` if the curve has one.
    sentence: str
    #: The smallest width; 1 for a curve without one.
    least_width: int = 1
    #: Widths that a search proposes; empty if the curve is only used on request.
    widths: tuple[int, ...] = (1,)
    #: Takes NumPy, tile rows, tile columns and the width; returns [rows * columns] tiles in the order in which they are
    #: run. A tile is ``row * columns + column``, and occurs exactly once. None for the program's own curves, which are
    #: in tuner/core/plan/order/rasters.py.
    order: Callable[[ArrayModule, int, int, int], Array] | None = None

    def __post_init__(self) -> None:
        where = f"raster {self.name!r}"
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(where, "has a name that a schedule's line cannot contain", "use lower-case letters only")
        if self.is_added and self.order is None:
            raise InvalidInput(where, "has no order", "pass a function that returns the tiles in order")
        if any(width < self.least_width or (width != 1 and not self.has_width) for width in self.widths):
            right = f"at least {self.least_width}" if self.has_width else "1, or write {width} in its sentence"
            raise InvalidInput(where, f"proposes the widths {self.widths}", f"use {right}")

    @property
    def is_added(self) -> bool:
        """Whether it comes from a package."""
        return self.number >= FIRST_ADDED_NUMBER

    @property
    def has_width(self) -> bool:
        """Whether the raster has a width; otherwise its width is 1."""
        return "{width}" in self.sentence
