"""Schedules that place neighbouring CTAs together, so that their requests for the same weights are merged."""

from __future__ import annotations

from tuner.core.schedule.ordering import RasterKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.core.space.joint import AnySpace
from tuner.core.space.space import Space, placed_together

#: Two rows of higher tiles had no reliable gain, nor did three or four rows (docs/findings/shared-weights.md).
FEW_ROWS, TILE_ROWS = 64, 2
#: Rasters in which vertically adjacent tiles follow each other.
_DOWNWARDS = (RasterKind.COLUMN, RasterKind.GROUPED)


def side_by_side(space: AnySpace, schedule: Schedule) -> Schedule | None:
    """The schedule with merged neighbours, if two low tiles, one below the other, have the same weights; otherwise
    None."""
    tiling = schedule.tiling
    if not isinstance(space, Space) or tiling.engine is not Engine.WGMMA or tiling.placed_ctas > 1:
        return None
    pairs = zip(space.workload.tile_ops, tiling.tiles, strict=True)
    if any(tile.m > FEW_ROWS or -(-op.m // tile.m) != TILE_ROWS for op, tile in pairs):
        return None
    if any(raster.kind not in _DOWNWARDS for raster in schedule.ordering.rasters):
        return None
    placed = placed_together(schedule)
    return placed if space.is_legal(placed) else None
