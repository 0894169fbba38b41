"""Rules for 8-bit operands whose scales change along k, and for outputs whose tiles compute scales of their groups."""

from __future__ import annotations

from tuner.core.problem.epilogue.scales.block_scale import BlockScale
from tuner.core.problem.epilogue.scales.group_scale import BLOCK, GroupScale
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tile, Tiling

#: Maximum fp32 sums per thread, by warpgroups: it has as many of the tensor cores, and the scales of its rows. Threads
#: of three warpgroups have 128 registers.
MAX_BLOCK_SCALED = {1: 64, 2: 64, 3: 32}


def scales_groups(op: TileOp) -> bool:
    """Whether a tile of the op computes scales of its output."""
    return bool(op.epilogue) and any(isinstance(part, GroupScale) for part in op.epilogue)


def is_block_scaled(op: TileOp) -> bool:
    """Whether the op's operands have scales that change along k."""
    return any(isinstance(part, BlockScale) for part in op.epilogue)


def scales_engine_problem(workload: Workload, engine: Engine) -> str | None:
    """Why the engine does not support the scales."""
    if engine is not Engine.WGMMA:
        for op in workload.tile_ops:
            for part in op.epilogue:
                if isinstance(part, BlockScale | GroupScale):
                    return f"{op.name} has the part {part.name}, which only wgmma supports: use wgmma"
    return None


def scales_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why a kernel of the wgmma engine cannot apply or compute the scales with this tiling."""
    if not tiling.swap_ab:
        for op in workload.tile_ops:
            if any(isinstance(part, BlockScale | GroupScale) for part in op.epilogue):
                return f"{op.name} has scales of blocks, which need swapped operands: use swap_ab true"
    return None


def group_problem(op: TileOp, tile: Tile) -> str | None:
    """Why a CTA's tile cannot compute the scales of the output's groups."""
    if tile.n == BLOCK or not scales_groups(op):
        return None
    return f"{op.name} has a scale for {BLOCK} columns, which one tile computes: use n {BLOCK} for each CTA"
