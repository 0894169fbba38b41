"""Rules for 8-bit operands whose scales change along k, and for outputs whose tiles compute scales of their groups."""

from __future__ import annotations

from tuner.core.problem.epilogue.scales.block_scale import BlockScale
from tuner.core.problem.epilogue.scales.group_scale import BLOCK, GroupScale
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tiling

#: Maximum fp32 sums per thread: it has as many of the tensor cores, and the scales of its rows.
MAX_BLOCK_SCALED = 64


def scales_groups(op: TileOp) -> bool:
    """Whether a tile of the op computes scales of its output."""
    return any(isinstance(part, GroupScale) for part in op.epilogue)


def most_block_scaled(op: TileOp) -> int | None:
    """Maximum fp32 sums per thread; None if the op has no scales along k."""
    return MAX_BLOCK_SCALED if any(isinstance(part, BlockScale) for part in op.epilogue) else None


def scales_engine_problem(workload: Workload, engine: Engine) -> str | None:
    """Why the engine does not support the scales."""
    if engine is Engine.WGMMA:
        return None
    for op in workload.tile_ops:
        if most_block_scaled(op) or scales_groups(op):
            part = BlockScale.name if most_block_scaled(op) else GroupScale.name
            return f"{op.name} has the part {part}, which only wgmma supports: use wgmma"
    return None


def scales_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why a kernel of the wgmma engine cannot apply or compute the scales with this tiling."""
    for op, tile in zip(workload.tile_ops, tiling.cta_tiles, strict=True):
        if not (most_block_scaled(op) or scales_groups(op)):
            continue
        if not tiling.swap_ab:
            return f"{op.name} has scales of blocks, which need swapped operands: use swap_ab true"
        if scales_groups(op) and tile.n != BLOCK:
            what = f"tile {tile}: {op.name} has a scale for {BLOCK} columns, which one tile computes"
            return f"{what}: use n {BLOCK} for each CTA"
    return None
