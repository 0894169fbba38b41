"""Schedules that place neighbouring CTAs together, so that their requests for the same weights are merged."""

from __future__ import annotations

from tuner.core.schedule.ordering import RasterKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.core.space.joint import AnySpace
from tuner.core.space.space import Space, placed_together
from tuner.search.model.pool import canonical

#: Low tiles are placed together in all launches. Two rows of higher tiles gain 0.7 to 1.9 % in programmatic launches
#: (clocks.json of the results on an H200), and nothing in others; three or four rows gain nothing
#: (docs/findings/shared-weights.md).
FEW_ROWS, TILE_ROWS = 64, 2
#: Rasters in which vertically adjacent tiles follow each other.
_DOWNWARDS = (RasterKind.COLUMN, RasterKind.GROUPED)


def side_by_side(space: AnySpace, schedule: Schedule) -> Schedule | None:
    """The schedule with merged neighbours, if two low tiles, one below the other, have the same weights; otherwise
    None."""
    return _placed(space, schedule) if all(tile.m <= FEW_ROWS for tile in schedule.tiling.tiles) else None


def forms_of(space: AnySpace, kind: PlanKind, schedule: Schedule) -> tuple[Schedule, ...]:
    """The forms of a schedule that a plan kind tries, the better one first. If launches of `kind` are programmatic, and
    two tiles, one below the other, have the same weights, that is the one with merged neighbours."""
    own = canonical(kind, schedule)
    placed = _placed(space, own) if kind.is_programmatic else None
    return (placed, own) if placed else (own,)


def _placed(space: AnySpace, schedule: Schedule) -> Schedule | None:
    tiling = schedule.tiling
    if not isinstance(space, Space) or tiling.engine is not Engine.WGMMA or tiling.placed_ctas > 1:
        return None
    pairs = zip(space.workload.tile_ops, tiling.tiles, strict=True)
    if any(-(-op.m // tile.m) != TILE_ROWS for op, tile in pairs):
        return None
    if any(raster.kind not in _DOWNWARDS for raster in schedule.ordering.rasters):
        return None
    placed = placed_together(schedule)
    return placed if space.is_legal(placed) else None
