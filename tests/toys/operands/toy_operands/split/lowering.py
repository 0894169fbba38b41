"""What the tiles of a split read and write."""

from __future__ import annotations

from toy_operands.split.op import SplitOp
from tuner.extend import Box, BoxRead, Tile, TileSpace, along


def lower(op: SplitOp, tile: Tile, chosen: None, *, num_parts: int, in_band: bool) -> TileSpace:
    """Tiles by rows and columns; each reads the same box of both sources."""
    columns = along(1, op.n, tile.n)
    box = (along(0, op.m, tile.m), columns)
    return TileSpace(
        name=op.name,
        grid=op.tile_grid(tile.m, tile.n),
        num_steps=1,
        num_parts=num_parts,
        writes=(Box(tensor=op.name, extents=box), Box(tensor=f"{op.name}.rest", extents=box)),
        reads=(
            BoxRead(box=Box(tensor=op.source, extents=box), in_band=in_band),
            BoxRead(box=Box(tensor=op.gate, extents=box), in_band=in_band),
            BoxRead(box=Box(tensor=f"{op.name}.factors", extents=(columns,))),
        ),
    )
