"""What the tiles of pairs read and write."""

from __future__ import annotations

from toy_pairs.op import PairsOp
from tuner.extend import Box, BoxRead, Tile, TileSpace, along


def lower(op: PairsOp, tile: Tile, chosen: None, *, num_parts: int, in_band: bool) -> TileSpace:
    """Tiles by rows and columns; each reads twice as many columns as it writes."""
    rows, columns, wide = along(0, op.m, tile.m), along(1, op.n, tile.n), along(1, 2 * op.n, 2 * tile.n)
    return TileSpace(
        name=op.name,
        grid=(len(rows.begin), len(columns.begin)),
        num_steps=1,
        num_parts=num_parts,
        writes=(Box(tensor=op.name, extents=(rows, columns)),),
        reads=(BoxRead(box=Box(tensor=op.source, extents=(rows, wide)), in_band=in_band),),
    )
