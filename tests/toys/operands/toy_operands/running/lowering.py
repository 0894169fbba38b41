"""What the tiles of a running mean read and write."""

from __future__ import annotations

from toy_operands.running.op import RunningOp
from tuner.extend import Box, BoxRead, Tile, TileSpace, along


def lower(op: RunningOp, tile: Tile, chosen: None, *, num_parts: int, in_band: bool) -> TileSpace:
    """Tiles by rows and columns; each updates its own box of the state."""
    box = (along(0, op.m, tile.m), along(1, op.n, tile.n))
    state = Box(tensor=f"{op.name}.state", extents=box)
    return TileSpace(
        name=op.name,
        grid=op.tile_grid(tile.m, tile.n),
        num_steps=1,
        num_parts=num_parts,
        writes=(Box(tensor=op.name, extents=box), state),
        reads=(BoxRead(box=Box(tensor=op.source, extents=box), in_band=in_band), BoxRead(box=state)),
    )
