"""The product that a task computes."""

from __future__ import annotations

from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.tiling import Tile, Tiling


def product_tile(op: TileOp, tile: Tile) -> Tile:
    """The product that a task computes, as wide as its slice of W, which has two rows per column if it is gated."""
    return Tile(m=tile.m, n=tile.n * op.rows_per_column, k=tile.k) if op.rows_per_column > 1 else tile


def weight_stage_bytes(op: TileOp, tile: Tile, dtype: Dtype) -> int:
    """Bytes of a stage of an op's weights, with the factors of their groups."""
    row_bytes: int = op.weights.row.row_bytes(tile.k) if op.weights else tile.k * dtype.size_bytes
    return product_tile(op, tile).n * row_bytes


def product_tiles(workload: Workload, tiling: Tiling) -> tuple[Tile, ...]:
    """For each op, the product that one of its tasks computes."""
    if not workload.has_wide_products:  # a search computes ten thousand tilings
        return tiling.tiles
    return tuple(product_tile(op, tile) for op, tile in zip(workload.tile_ops, tiling.tiles, strict=True))
