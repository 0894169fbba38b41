"""The product that a task computes."""

from __future__ import annotations

from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile, Tiling


def product_tile(op: TileOp, tile: Tile) -> Tile:
    """The product that a task computes: as wide as its slice of W, which has two rows a column where it is gated."""
    return Tile(m=tile.m, n=tile.n * op.rows_per_column, k=tile.k) if op.rows_per_column > 1 else tile


def product_tiles(workload: Workload, tiling: Tiling) -> tuple[Tile, ...]:
    """The product that a task of each op computes."""
    return tuple(product_tile(op, tile) for op, tile in zip(workload.tile_ops, tiling.tiles, strict=True))
