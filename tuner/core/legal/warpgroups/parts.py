"""Rules of parts of epilogues that multiply or store tiles themselves: what each requires is in its `KernelPart`."""

from __future__ import annotations

from tuner.core.problem.epilogue.kernel import max_sums
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, PartSums, Tile, Tiling, Warpgroups

#: Rows of a block of sums, and columns of such a piece.
ONE_BLOCK_ROWS, PIECE_COLUMNS = 64, 64


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
    if tiling.swap_ab:
        return None
    for index, op in enumerate(workload.tile_ops):
        shares_sums = tiling.cluster_k > 1 or (tiling.part_sums is PartSums.SCATTERED and tiling.num_parts(index) > 1)
        for part in op.epilogue:
            has = f"{op.name} has the part {part.name}"
            if part.kernel.is_swapped:
                return f"{has}, which needs swapped operands: use swap_ab true"
            if part.kernel.needs_tile and shares_sums:
                return f"{has}, which stores whole rows of a tile, and each CTA has some columns: use swap_ab true"
    return None


def columns_problem(op: TileOp, tile: Tile, *, swap_ab: bool) -> str | None:
    """Why a part does not support the width of a CTA's tile."""
    for part in op.epilogue:
        has = f"{op.name} has the part {part.name}"
        if (columns := part.kernel.tile_columns) not in (0, tile.n):
            return f"{has}, which needs {columns} columns: use n {columns} for each CTA"
        if not swap_ab and (block := part.kernel.column_blocks) and block % tile.n and tile.n % block:
            return f"{has}: without swapped operands, use an n that divides {block}, or a multiple of it, for each CTA"
    return None


def column_block(op: TileOp) -> int:
    """Columns that a part of the epilogue multiplies at a time if W is operand B; 0 if none does."""
    return max((part.kernel.column_blocks for part in op.epilogue), default=0)


def columns_at_once(op: TileOp, columns: int, *, swap_ab: bool) -> int:
    """Of `columns` rows of operand B of a task, those that the tensor cores multiply at a time."""
    return columns if swap_ab else min(columns, column_block(op) or columns)


def max_sums_beside(op: TileOp, groups: int, *, swap_ab: bool) -> int | None:
    """Maximum fp32 sums per thread next to the op's parts, if `groups` warpgroups multiply a task; None if only the
    engine limits them."""
    return max_sums(tuple(part.kernel for part in op.epilogue), groups, swap_ab=swap_ab) if op.epilogue else None


def part_multiplies(op: TileOp) -> bool:
    """Whether a part multiplies the op's tiles, and limits the sums that it promotes."""
    return any(part.kernel.multiplies for part in op.epilogue)


def promotes_at_once(op: TileOp, tile: Tile, *, swap_ab: bool) -> bool:
    """Whether a tile's promoted sums must fit the registers twice."""
    return not part_multiplies(op) and (swap_ab or not _is_in_pieces(op, tile))


def piece_columns(op: TileOp, tile: Tile) -> int:
    """Rows of operand B per instruction, if W is operand B and a tile is multiplied in pieces; else 0."""
    return min(tile.n, column_block(op)) or (PIECE_COLUMNS if _is_in_pieces(op, tile) else 0)


def _is_in_pieces(op: TileOp, tile: Tile) -> bool:
    """Whether up to 128 sums per thread are promoted piece by piece if W is operand B: those of a gated tile of 64 rows
    whose width a part of the epilogue requires."""
    is_wide = op.rows_per_column > 1 and any(part.kernel.tile_columns for part in op.epilogue)
    return is_wide and tile.m <= ONE_BLOCK_ROWS and not part_multiplies(op)


def exchanged_numbers(op: TileOp, num_warps: int) -> int:
    """fp32 numbers in shared memory for each row of a tile that `num_warps` warps share."""
    return max((part.kernel.num_exchanged(num_warps) for part in op.epilogue), default=0)
