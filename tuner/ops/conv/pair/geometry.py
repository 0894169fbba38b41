"""The regions of a tile, in pixels, and their layout in shared memory. The device code contains these numbers, and the
proof compares the regions with what the convolutions read.

A region is stored by 8 channels and, within these, by phase: the pixels whose row and column have the same remainders
by the stride of the filter that reads them. So for each position of a filter, neighbouring pixels of its output read
neighbouring places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.schedule import ConvPairSchedule

#: Filters of an instruction, and channels and bytes of a place.
BLOCK, CHUNK, PLACE_BYTES = 64, 8, 16
#: Bytes of a pixel's block of the output while it is transposed; the last ones keep rows in different banks.
STAGE_BYTES = 2 * BLOCK + 16
#: Columns of the widest instruction.
MOST_COLUMNS = 256


@dataclass(frozen=True, kw_only=True)
class Region:
    """What a convolution reads for a tile of its output."""

    #: Rows and columns.
    rows: int
    columns: int
    #: Position of its first row, and column: `scale` times that of the tile, plus `shift`.
    scale: int
    shift: int
    #: The stride of the filter that reads it.
    stride: int
    #: Columns of the product of the filter and this region: places from the tile's first pixel to its last.
    products: int
    #: The same per warpgroup, and how many of the warpgroups of a tile share them.
    share: int
    sharers: int
    #: Rows and columns of the filter.
    kernel: int

    @property
    def phase_columns(self) -> int:
        """Columns of a phase."""
        return -(-self.columns // self.stride)

    @property
    def phase_places(self) -> int:
        """Places of a phase, up to the last that any product of the region reads."""
        last = (self.kernel - 1) // self.stride * (self.phase_columns + 1)
        return max(self.share * self.sharers + last, -(-self.rows // self.stride) * self.phase_columns)

    @property
    def places(self) -> int:
        """Places for 8 channels, and one more that nothing reads. Odd, so that the channels of a pixel are in different
        banks."""
        return self.stride**2 * self.phase_places + 1 | 1


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The regions of a tile of the output."""

    #: Tiles of an image along its rows and columns.
    tile_rows: int
    tile_columns: int
    #: What the tile needs of the input, and of the images between.
    patch: Region
    middle: Region
    #: Bytes of shared memory: of the filters of each convolution, and of a tile's patch, middle and output.
    filter_bytes: tuple[int, int]
    patch_bytes: int
    middle_bytes: int
    stage_bytes: int
    #: Blocks of the output that a tile, or each of its warpgroups, has room for: all of them if images are added, which
    #: arrive there before the second convolution.
    num_stages: int
    #: Whether the warpgroups of a tile share the second one's filters; otherwise they share pixels.
    splits_filters: bool
    smem_bytes: int


def region_of(op: ConvOp, rows: int, columns: int, sharers: int, *, scale: int, shift: int) -> Region:
    """What `op` reads for `rows` x `columns` pixels of its output, which begin at `scale` times a tile's position plus
    `shift`."""
    wide, high = ((count - 1) * op.stride + op.kernel for count in (columns, rows))
    products = (rows - 1) * -(-wide // op.stride) + columns
    return Region(
        rows=high,
        columns=wide,
        scale=scale * op.stride,
        shift=shift * op.stride - op.padding,
        stride=op.stride,
        products=products,
        share=math.ceil(products / 8 / sharers) * 8,
        sharers=sharers,
        kernel=op.kernel,
    )


@lru_cache(maxsize=1024)
def geometry_of(op: ConvPairOp, schedule: ConvPairSchedule) -> Geometry:
    """The regions of a schedule's tiles."""
    first, second, team = op.first, op.second, schedule.team
    splits_filters = team > 1 and second.filters // BLOCK % team == 0
    middle = region_of(second, schedule.rows, schedule.columns, 1 if splits_filters else team, scale=1, shift=0)
    patch = region_of(first, middle.rows, middle.columns, team, scale=middle.scale, shift=middle.shift)
    filter_bytes = tuple(one.k // CHUNK * (one.filters | 1) * PLACE_BYTES for one in (first, second))
    patch_bytes, middle_bytes = (
        channels // CHUNK * region.places * PLACE_BYTES
        for channels, region in ((first.channels, patch), (second.channels, middle))
    )
    stage_bytes = middle.share * middle.sharers * STAGE_BYTES
    sharing = team if splits_filters else 1
    num_stages = second.filters // BLOCK // sharing if second.residual else 1
    of_tile = patch_bytes + middle_bytes + stage_bytes * num_stages * sharing
    return Geometry(
        tile_rows=-(-second.out_height // schedule.rows),
        tile_columns=-(-second.out_width // schedule.columns),
        patch=patch,
        middle=middle,
        filter_bytes=(filter_bytes[0], filter_bytes[1]),
        patch_bytes=patch_bytes,
        middle_bytes=middle_bytes,
        stage_bytes=stage_bytes,
        num_stages=num_stages,
        splits_filters=splits_filters,
        smem_bytes=sum(filter_bytes) + schedule.num_teams * of_tile,
    )
