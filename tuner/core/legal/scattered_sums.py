"""When each part of a tile may add up a share of the tile, and wait for the other parts' sums."""

from __future__ import annotations

from tuner.core.legal.wgmma import COLUMNS
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Assignment, Ordering, SplitTiles
from tuner.core.schedule.tiling import Engine, Epilogue, PartSums, Tiling, Warpgroups

#: Maximum parts of a tile: a kernel has an epilogue for each share.
MOST_PARTS = 4


def scattered_sums_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why scattered sums are refused; None if they are legal."""
    if tiling.part_sums is PartSums.LAST:
        return None
    asked = f"part_sums {tiling.part_sums}"
    if tiling.engine is not Engine.WGMMA:
        return f"{asked}: not supported by the {tiling.engine} engine; use {PartSums.LAST}"
    if not tiling.split_k:
        return f"{asked}, but no op is split: use {PartSums.LAST}"
    if tiling.warpgroups is Warpgroups.PING_PONG:
        return (
            f"{asked}, and warpgroups take turns: a part would wait before the other warpgroup's turn; use cooperative"
        )
    if tiling.epilogue is Epilogue.TMA:
        return f"{asked} and epilogue tma: shares are stored by threads; use direct"
    if tiling.in_band:
        return f"{asked}, but ops read in band: use {PartSums.LAST}"
    if tiling.cluster_size > 1:
        return f"{asked} in clusters of {tiling.cluster_size} CTAs: use {PartSums.LAST}"
    for index, (op, tile) in enumerate(zip(workload.tile_ops, tiling.tiles, strict=True)):
        if (parts := tiling.num_parts(index)) == 1:
            continue
        if parts > MOST_PARTS:
            return f"{asked} with {parts} parts of {op.name}: use up to {MOST_PARTS}"
        size, what = (tile.m, "rows") if tiling.swap_ab else (tile.n, "columns")
        if size < parts * COLUMNS:
            return f"tile {tile}: {parts} parts, and each must finish {COLUMNS} of its {what}"
        if workload.writes_squares(index) and not tiling.swap_ab:
            return f"{asked} of {op.name}, which normalizes its rows: use {PartSums.LAST}, or swapped operands"
        if workload.cache_op == index:
            return f"{asked} of {op.name}, which writes to a cache: use {PartSums.LAST}"
    return None


def parts_at_once_problem(graph: TileGraph, ordering: Ordering, num_ctas: int) -> str | None:
    """Why parts that wait for each other would not run at the same time."""
    tiling = graph.tiling
    if tiling.part_sums is PartSums.LAST:
        return None
    if ordering.assignment is not Assignment.STATIC:
        return (
            "scattered sums: parts wait for each other, and only queues run them at the same time: use "
            f"{Assignment.STATIC}"
        )
    if ordering.split_tiles is SplitTiles.STREAM:
        return (
            "scattered sums: even shares of the tail give tiles different "
            "numbers of parts; use split_tiles tail, or all"
        )
    if ordering.partition:
        return "scattered sums: the sides of a partition order their tiles separately; use partition 0"
    split = [graph.num_tasks_of(op) for op in graph.op_indices if graph.num_parts(op) > 1]
    if ordering.part_major and (most := max(split, default=0)) > num_ctas:
        return (
            f"scattered sums: {most} parts on {num_ctas} CTAs, so those of a tile do not run at the same time: drop "
            "part_major"
        )
    if (most := max(tiling.split_k)) > num_ctas:
        return f"scattered sums: {most} parts wait for each other, but there are {num_ctas} CTAs"
    return None
