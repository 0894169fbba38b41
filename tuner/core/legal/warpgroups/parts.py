"""Rules of parts of epilogues that multiply or store tiles themselves: what each requires is in its `KernelPart`."""

from __future__ import annotations

from tuner.core.problem.epilogue.kernel import max_sums
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tile, Tiling, Warpgroups


def team_warps(tiling: Tiling) -> int:
    """Warps that multiply a task together."""
    return tiling.num_warps // (2 if tiling.warpgroups is Warpgroups.PING_PONG else 1)


def engines_problem(workload: Workload, engine: Engine) -> str | None:
    """Why the engine does not support a part."""
    for op in workload.tile_ops:
        for part in op.epilogue:
            if (known := part.kernel.engines) and engine not in known:
                names = " or ".join(known)
                return f"{op.name} has the part {part.name}, which only {names} supports: use {names}"
    return None


def operands_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why a part does not support this order of operands."""
    if not tiling.swap_ab:
        for op in workload.tile_ops:
            for part in op.epilogue:
                if part.kernel.is_swapped:
                    return f"{op.name} has the part {part.name}, which needs swapped operands: use swap_ab true"
    return None


def columns_problem(op: TileOp, tile: Tile) -> str | None:
    """Why a part does not support the width of a CTA's tile."""
    for part in op.epilogue:
        if (columns := part.kernel.tile_columns) not in (0, tile.n):
            return f"{op.name} has the part {part.name}, which needs {columns} columns: use n {columns} for each CTA"
    return None


def max_sums_beside(op: TileOp, groups: int) -> int | None:
    """Maximum fp32 sums per thread next to the op's parts, if `groups` warpgroups multiply a task; None if only the
    engine limits them."""
    return max_sums(tuple(part.kernel for part in op.epilogue), groups) if op.epilogue else None


def exchanged_numbers(op: TileOp, num_warps: int) -> int:
    """fp32 numbers in shared memory for each row of a tile that `num_warps` warps share."""
    return max((part.kernel.num_exchanged(num_warps) for part in op.epilogue), default=0)
