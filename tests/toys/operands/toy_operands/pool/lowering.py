"""What the tiles of a pooling read and write."""

from __future__ import annotations

import numpy as np

from toy_operands.pool.op import PoolOp
from tuner.extend import Box, BoxRead, Extent, Tile, TileSpace, along


def lower(op: PoolOp, tile: Tile, chosen: None, *, num_parts: int, in_band: bool) -> TileSpace:
    """Tiles by consecutive pixels and by channels. A tile reads all rows of pictures that contain its windows."""
    pixels, columns = along(0, op.m, tile.m), along(1, op.n, tile.n)
    step = op.stride * op.width  # input pixels for a row of output pixels
    first, last = pixels.begin // op.out_width, (pixels.end - 1) // op.out_width
    read = Extent(axes=(0,), begin=(first * step).astype(np.int64), end=((last + 1) * step).astype(np.int64))
    return TileSpace(
        name=op.name,
        grid=op.tile_grid(tile.m, tile.n),
        num_steps=1,
        num_parts=num_parts,
        writes=(Box(tensor=op.name, extents=(pixels, columns)),),
        reads=(BoxRead(box=Box(tensor=op.source, extents=(read, columns)), in_band=in_band),),
    )
