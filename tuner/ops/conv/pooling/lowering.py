"""What the tiles of a pooling read and write."""

from __future__ import annotations

from tuner.core.plan.graph.boxes import Box, BoxRead, TileSpace, along
from tuner.core.schedule.tiling import Tile
from tuner.ops.conv.lowering import read_pixels
from tuner.ops.conv.pooling.op import PoolingOp


def lower(op: PoolingOp, tile: Tile, chosen: None = None, *, num_parts: int = 1, in_band: bool = False) -> TileSpace:
    """Tiles of output pixels, numbered through all images, and of channels. A tile reads its channels of the pixels
    from the first to the last that its windows contain."""
    pixels, channels = along(0, op.m, tile.m), along(1, op.n, tile.n)
    read = Box(tensor=op.source, extents=(read_pixels(op, tile.m), channels))
    return TileSpace(
        name=op.name,
        grid=op.tile_grid(tile.m, tile.n),
        num_steps=1,
        num_parts=num_parts,
        writes=(Box(tensor=op.name, extents=(pixels, channels)),),
        reads=(BoxRead(box=read, in_band=in_band),),
    )
