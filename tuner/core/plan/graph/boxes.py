"""The boxes of tensors that the tiles of an op read and write, as arrays, without an object per tile or task.

A box is the product of half-open intervals, one for each dimension of its tensor. The interval depends on some of the
coordinates of the tile in its op's grid, which has any number of axes, and on the step in which it is read.

Plans, proofs and simulations know nothing else about an op, besides `lowering.lower`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
#: Coordinates by axis of a grid.
Places = tuple[npt.NDArray[np.integer[Any]], ...]

#: The step of the tile, as an axis of an extent, which comes last.
STEP = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Extent:
    """The interval of a box along one dimension of its tensor. Extents are compared by identity, since they are
    cached.
    """

    #: The axes of the op's grid on which it depends, ascending, then `STEP`; empty if it is the same for all tiles.
    axes: tuple[int, ...]
    #: [sizes of these axes] the interval's beginning, and one past its end. An empty interval makes the box empty.
    begin: Ints
    end: Ints

    def __post_init__(self) -> None:
        in_order = sorted(axis for axis in self.axes if axis != STEP)
        if self.axes not in ((*in_order,), (*in_order, STEP)) or len(set(self.axes)) < len(self.axes):
            raise ValueError(f"axes {self.axes} of an extent: they must ascend, none twice, and STEP comes last")
        if self.begin.shape != self.end.shape or self.begin.ndim != len(self.axes):
            shapes = f"{self.begin.shape} and {self.end.shape}"
            raise ValueError(f"begin and end of an extent by axes {self.axes} have the shapes {shapes}")
        if self.begin.dtype != np.int64 or self.end.dtype != np.int64 or (self.begin < 0).any():
            kinds = f"{self.begin.dtype} and {self.end.dtype}, from {self.begin.min(initial=0)} on"
            raise ValueError(f"begin and end of an extent by axes {self.axes} are {kinds}; use int64, 0 and more")
        self.begin.setflags(write=False)
        self.end.setflags(write=False)

    @cached_property
    def is_rising(self) -> bool:
        """Whether it depends on one axis, along which beginnings and ends never decrease and no interval is empty."""
        is_full = bool((self.begin < self.end).all())
        rises = len(self.axes) == 1 and bool((np.diff(self.begin) >= 0).all() and (np.diff(self.end) >= 0).all())
        return is_full and rises


@lru_cache(maxsize=8192)
def whole(size: int) -> Extent:
    """The extent of a whole dimension of `size` elements."""
    return Extent(axes=(), begin=np.zeros((), dtype=np.int64), end=np.array(size, dtype=np.int64))


@lru_cache(maxsize=8192)
def along(axis: int, size: int, tile: int, *, before: int = 0, after: int = 0, offset: int = 0) -> Extent:
    """The extent of tiles of a dimension of `size` elements, along an axis of the grid or by steps; clipped to the
    dimension.

    Args:
        axis: the axis, or `STEP`.
        size: elements of the dimension.
        tile: elements of a tile; the last one may have fewer.
        before: elements of a halo before each tile.
        after: elements of a halo after each tile.
        offset: start of the dimension within that of the tensor.
    """
    begin = np.arange(0, size, tile, dtype=np.int64)
    end = np.minimum(begin + tile + after, size)
    return Extent(axes=(axis,), begin=np.maximum(begin - before, 0) + offset, end=end + offset)


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """A box of a tensor for each tile and step."""

    #: The op's name for its output, otherwise the name that the op's kind uses.
    tensor: str
    #: One for each dimension.
    extents: tuple[Extent, ...]

    def at(self, coordinates: tuple[int, ...], step: int = 0) -> tuple[slice, ...]:
        """The box of one tile, in one of its steps."""
        places = (*coordinates, step)
        found = [(extent, tuple(places[axis] for axis in extent.axes)) for extent in self.extents]
        return tuple(slice(int(extent.begin[place]), int(extent.end[place])) for extent, place in found)

    def text(self, coordinates: tuple[int, ...], step: int = 0) -> str:
        """``up[0:16, 32:64]``."""
        ranges = ", ".join(f"{one.start}:{one.stop}" for one in self.at(coordinates, step))
        return f"{self.tensor}[{ranges}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxRead:
    """A box that each tile reads. A box that does not depend on the step is read in the first step of each part of a
    tile."""

    box: Box
    #: Read after the last step, by the part of the tile that finishes last.
    is_late: bool = False
    #: Each element signals its own arrival, so no wait is needed for it.
    in_band: bool = False

    def __post_init__(self) -> None:
        if self.is_late and any(STEP in extent.axes for extent in self.box.extents):
            raise ValueError(f"{self.box.tensor} is read after the last step, so its box does not move with the steps")


@dataclass(frozen=True, kw_only=True)
class RunTimeInput:
    """Numbers that are only known when a launch runs, such as lengths. A plan is valid for all values within the
    range."""

    name: str
    #: How many numbers there are.
    count: int
    #: Minimum of each number.
    least: int
    most: int

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.least <= self.most:
            given = f"{self.count} numbers of {self.least} to {self.most}"
            raise ValueError(f"{self.name} has {given}; at least one is needed, with 0 <= least <= most")


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The extent of a tensor's dimension at run time, which no box exceeds.

    Tiles without output left, and steps without input left, are skipped. The tile's task still waits before its first
    step and after its last one, and posts. Waits before skipped steps are skipped, too.
    """

    tensor: str
    dimension: int
    #: The input that determines it.
    limit: RunTimeInput
    #: The dimension whose coordinate selects the number of the input; None if there is only one.
    by: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class TileSpace:
    """The tiles of one op of a launch: what each of them writes, and reads in which of its steps.

    A task is a tile, or one of the parts among which its steps are shared. A plan's words have two coordinates per
    tile, row and column: the first `row_axes` axes of the grid flattened, and the others flattened.
    """

    #: The op's name.
    name: str
    #: Tiles along each axis.
    grid: tuple[int, ...]
    #: Steps of a tile.
    num_steps: int
    #: Maximum parts of a tile; 1 if it is not split.
    num_parts: int = 1
    #: What a tile writes, once, when all its parts are done.
    writes: tuple[Box, ...]
    #: What it reads, including inputs of the launch.
    reads: tuple[BoxRead, ...]
    #: Axes that form a tile's row in the words of a plan.
    row_axes: int = 1
    #: Bounds of tensors that it reads or writes, for extents that are limited at run time.
    bounds: tuple[Bound, ...] = ()

    def __post_init__(self) -> None:
        counts = (*self.grid, self.num_steps, self.num_parts)
        if not self.grid or min(counts) < 1 or not 0 <= self.row_axes <= len(self.grid):
            given = f"a grid of {self.grid}, {self.num_steps} steps in {self.num_parts} parts, {self.row_axes} row axes"
            raise ValueError(f"{self.name} has {given}; one of each is needed, and no more row axes")
        sizes = {**dict(enumerate(self.grid)), STEP: self.num_steps}
        for box in (*self.writes, *(read.box for read in self.reads)):
            for dimension, extent in enumerate(box.extents):
                wanted = tuple(sizes.get(axis, 0) for axis in extent.axes)
                if extent.begin.shape != wanted:
                    what = f"{self.name}: dimension {dimension} of {box.tensor} uses axes {extent.axes}"
                    raise ValueError(f"{what}, in an array of shape {extent.begin.shape}; it must be {wanted}")
        for box in self.writes:
            if any(STEP in extent.axes or (extent.begin >= extent.end).any() for extent in box.extents):
                what = f"{self.name}: a tile writes one box of {box.tensor}, which must not be empty"
                raise ValueError(f"{what}: refuse such tiles in rules.py")
        for bound in self.bounds:
            boxes = [box for box in (*self.writes, *(read.box for read in self.reads)) if box.tensor == bound.tensor]
            used = [bound.dimension] if bound.by is None else [bound.dimension, bound.by]
            rank = min((len(box.extents) for box in boxes), default=0)
            if bound.dimension == bound.by or not all(0 <= one < rank for one in used):
                what = f"{bound.tensor} in dimension {bound.dimension} by {bound.by}"
                raise ValueError(
                    f"{self.name}: {bound.limit.name} bounds {what}, which is not a dimension of any of its boxes"
                )

    @cached_property
    def word_grid(self) -> tuple[int, int]:
        """Rows and columns of tiles, as in the words of a plan."""
        return math.prod(self.grid[: self.row_axes]), math.prod(self.grid[self.row_axes :])

    @property
    def num_tiles(self) -> int:
        """Tiles of the grid."""
        return math.prod(self.grid)

    def places(self, tasks: npt.NDArray[np.int32]) -> Places:
        """The coordinates of each task's tile: an array of [tasks] per axis, from the words of a plan."""
        if (len(self.grid), self.row_axes) == (2, 1):
            return tasks[:, 1], tasks[:, 2]
        return np.unravel_index(self.numbers(tasks), self.grid)

    @cached_property
    def all_places(self) -> Places:
        """Same as `places` for all tiles, in the order of their numbers."""
        return np.unravel_index(np.arange(self.num_tiles), self.grid)

    def numbers(self, tasks: npt.NDArray[np.int32]) -> Ints:
        """[tasks] the number of each task's tile in the grid, from the words of a plan."""
        return tasks[:, 1].astype(np.int64) * self.word_grid[1] + tasks[:, 2]

    def coordinates(self, row: int, col: int) -> tuple[int, ...]:
        """Coordinates of the tile with the words `row` and `col`."""
        place = np.unravel_index(row * self.word_grid[1] + col, self.grid)
        return tuple(int(coordinate) for coordinate in place)

    def with_parts(self, num_parts: int) -> TileSpace:
        """The same tiles, each in at most `num_parts` parts."""
        return self if num_parts == self.num_parts else replace(self, num_parts=num_parts)
