"""When TMA cannot store a kernel's tiles."""

from __future__ import annotations

from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Epilogue, Tiling


def epilogue_problem(workload: Workload, tiling: Tiling, line: int) -> str | None:
    """Why TMA would store nothing, or cannot store the tiles; `line` is the number of elements per TMA store."""
    if tiling.epilogue is not Epilogue.TMA:
        return None
    if (index := workload.cache_op) is not None:
        return f"epilogue tma of {workload.tile_ops[index].name}: TMA cannot write to a cache; use direct"
    if tiling.swap_ab:
        return "epilogue tma of swapped operands: threads transpose what they store; use direct"
    if (widest := max(tile.n for tile in tiling.cta_tiles)) < line:
        return f"epilogue tma of {widest} columns: TMA stores {line} at once; use direct"
    return None
