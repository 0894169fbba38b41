"""When a launch may place CTAs that compute separate tasks side by side."""

from __future__ import annotations

from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tiling


def neighbours_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why CTAs cannot be placed as the tiling says."""
    if tiling.neighbours == 1:
        return None
    asked = f"neighbours {tiling.neighbours}"
    if tiling.engine is not Engine.WGMMA:
        return f"{asked}: not supported by the {tiling.engine} engine; use 1"
    if tiling.cluster_size > 1:
        return f"{asked} in clusters of {tiling.cluster_size} CTAs, which are placed together anyway: use 1"
    if all(op.m <= tile.m for op, tile in zip(workload.tile_ops, tiling.tiles, strict=True)):
        return f"{asked}, but each tile has all rows, so no two read the same weights: use 1"
    return None
