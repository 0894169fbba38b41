"""What its tiles read and write."""

from __future__ import annotations

from toy_clamp.op import ClampOp
from tuner.extend import Box, BoxRead, Tile, TileSpace, along


def lower(op: ClampOp, tile: Tile, chosen: None, *, num_parts: int, in_band: bool) -> TileSpace:
    """Tiles by rows and columns; each reads the box of X that it writes of the output."""
    box = (along(0, op.m, tile.m), along(1, op.n, tile.n))
    return TileSpace(
        name=op.name,
        grid=op.tile_grid(tile.m, tile.n),
        num_steps=1,
        num_parts=num_parts,
        writes=(Box(tensor=op.name, extents=box),),
        reads=(BoxRead(box=Box(tensor=op.source, extents=box), in_band=in_band),),
    )
