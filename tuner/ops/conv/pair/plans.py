"""The plan of a pair of convolutions: which boxes of images each tile reads, and of the images between computes.

A tile keeps its patch of the input, and its part of the images between, in shared memory. The proof regards both as
tensors with a copy for each tile: what a convolution reads for a tile, computed from its filters alone, must be within
what the same tile has written before its barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tuner.core.plan.graph.boxes import Box, BoxRead, Extent, Ints, TileSpace, along, whole
from tuner.core.problem.gpu import Gpu
from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pair.geometry import Geometry, Region, geometry_of
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.schedule import ConvPairSchedule

#: Axes of the grid of tiles: image, rows, columns.
_IMAGE, _ROW, _COLUMN = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class ConvPairPlan:
    """A persistent grid; CTA i begins with tile i, and goes on with every further one."""

    geometry: Geometry
    #: Tiles of all images.
    num_tiles: int
    num_ctas: int


def plan_of(op: ConvPairOp, schedule: ConvPairSchedule, gpu: Gpu) -> ConvPairPlan:
    """As many CTAs as have a tile and an SM."""
    geometry = geometry_of(op, schedule)
    num_tiles = op.images * geometry.tile_rows * geometry.tile_columns
    num_ctas = min(gpu.num_sms, -(-num_tiles // schedule.num_teams))
    return ConvPairPlan(geometry=geometry, num_tiles=num_tiles, num_ctas=num_ctas)


def spaces_of(op: ConvPairOp, schedule: ConvPairSchedule, plan: ConvPairPlan) -> Sequence[TileSpace]:
    """The stages of its launch, between barriers of a tile's warps: copy, first convolution, second convolution."""
    return _spaces(op, schedule, plan.geometry)


@lru_cache(maxsize=64)  # so that the proof recognises the boxes of equal plans
def _spaces(op: ConvPairOp, schedule: ConvPairSchedule, geometry: Geometry) -> tuple[TileSpace, ...]:
    first, second = op.first, op.second
    grid = (op.images, geometry.tile_rows, geometry.tile_columns)
    patch, middle = f"{op.name}.patch", first.name
    copied = _region(first.height, first.width, grid, schedule, geometry.patch)
    computed = _region(second.height, second.width, grid, schedule, geometry.middle)
    rows, columns = along(_ROW, second.out_height, schedule.rows), along(_COLUMN, second.out_width, schedule.columns)
    images = along(_IMAGE, op.images, 1)
    stages = (
        (f"{op.name}: copy", (patch, copied, op.channels), (op.source, copied, op.channels)),
        (f"{op.name}: first", (middle, computed, op.between), (patch, _read_for(first, computed), op.channels)),
        (op.name, (op.name, (rows, columns), op.filters), (middle, _read_for(second, (rows, columns)), op.between)),
    )
    own = {patch: "first", middle: "second"}
    found = []
    for name, written, read in stages:
        boxes = [
            Box(tensor=tensor, extents=(*(_copies(grid) if tensor in own else ()), images, *sides, whole(channels)))
            for tensor, sides, channels in (written, read)
        ]
        others = _filters(op, first if name.endswith("first") else second) if read[0] in own else ()
        if written[0] == op.name and op.residual_source:
            others = (*others, BoxRead(box=replace(boxes[0], tensor=op.residual_source)))
        found.append(
            TileSpace(name=name, grid=grid, num_steps=1, writes=(boxes[0],), reads=(BoxRead(box=boxes[1]), *others))
        )
    return tuple(found)


def _copies(grid: tuple[int, int, int]) -> tuple[Extent, ...]:
    """The dimensions that number the copies of a tensor: one for each tile."""
    return tuple(along(axis, size, 1) for axis, size in enumerate(grid))


def _filters(op: ConvPairOp, conv: ConvOp) -> tuple[BoxRead, ...]:
    shape = (conv.filters, conv.kernel, conv.kernel, conv.channels)
    found = [BoxRead(box=Box(tensor=f"{conv.name}.w", extents=tuple(map(whole, shape))))]
    if op.bias:
        found.append(BoxRead(box=Box(tensor=f"{conv.name}.bias", extents=(whole(conv.filters),))))
    return tuple(found)


def _region(
    height: int, width: int, grid: tuple[int, int, int], schedule: ConvPairSchedule, region: Region
) -> tuple[Extent, Extent]:
    """Rows and columns of the images that the device code has in a region, without those outside of an image."""
    sides = []
    for axis, size, tile, count in (
        (_ROW, height, schedule.rows, region.rows),
        (_COLUMN, width, schedule.columns, region.columns),
    ):
        begin = np.arange(grid[axis], dtype=np.int64) * tile * region.scale + region.shift
        sides.append(_clipped(axis, begin, begin + count, size))
    return sides[0], sides[1]


def _read_for(op: ConvOp, output: tuple[Extent, Extent]) -> tuple[Extent, Extent]:
    """Rows and columns of its images that a convolution reads for rows and columns of its output."""
    sides = []
    for extent, size in zip(output, (op.height, op.width), strict=True):
        begin = extent.begin * op.stride - op.padding
        end = (extent.end - 1) * op.stride - op.padding + op.kernel
        sides.append(_clipped(extent.axes[0], begin, end, size))
    return sides[0], sides[1]


def _clipped(axis: int, begin: Ints, end: Ints, size: int) -> Extent:
    inside = np.clip(begin, 0, size), np.clip(end, 0, size)
    return Extent(axes=(axis,), begin=inside[0].astype(np.int64), end=inside[1].astype(np.int64))
