"""What the tiles of a depthwise convolution read and write."""

from __future__ import annotations

import numpy as np

from toy_depthwise.op import DepthwiseOp
from toy_depthwise.schedule import DepthwiseSchedule
from tuner.extend import Box, BoxRead, Extent, Tile, TileSpace, along, whole


def lower(op: DepthwiseOp, tile: Tile, chosen: DepthwiseSchedule | None, *, num_parts: int, in_band: bool) -> TileSpace:
    """Tiles by sequence, rows of a sequence, and channels. A tile reads its rows and those around them in the sequence,
    for its channels, at once."""
    columns = along(2, op.n, tile.n)
    return TileSpace(
        name=op.name,
        grid=(op.sequences, -(-op.length // tile.m), len(columns.begin)),
        num_steps=1,
        num_parts=num_parts,
        writes=(Box(tensor=op.name, extents=(_rows(op, tile.m, 0), columns)),),
        reads=(
            BoxRead(box=Box(tensor=op.source, extents=(_rows(op, tile.m, op.radius), columns)), in_band=in_band),
            BoxRead(box=Box(tensor=f"{op.name}.weight", extents=(columns, whole(op.taps)))),
        ),
        row_axes=2,
    )


def _rows(op: DepthwiseOp, tile_m: int, halo: int) -> Extent:
    """[sequences, tiles of a sequence] the rows of H, in which the sequences follow each other."""
    of_one = along(1, op.length, tile_m, before=halo, after=halo)
    first = np.arange(op.sequences, dtype=np.int64)[:, None] * op.length
    return Extent(axes=(0, 1), begin=first + of_one.begin, end=first + of_one.end)
