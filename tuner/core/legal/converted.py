"""Rules for weights that are stored with fewer bits than they are multiplied in, and converted in registers."""

from __future__ import annotations

from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tile

#: The engines that convert weights.
ENGINES = (Engine.WGMMA, Engine.MMA)
#: Maximum fp32 sums per thread, in addition to fragments of weights; with groups there are two more sets of the same
#: size, one per group.
MAX_CONVERTED, MAX_GROUPED = 96, 64
#: Maximum fp32 sums per thread for a kernel without conversion.
MAX_ACCUMULATORS = 192
#: Maximum registers of a thread for sums, fragments and factors, if one warpgroup multiplies alone, by `wgmma`: with
#: more, the compiler spills, or serialises the products (48 and 32 rows of mxfp4 by 192 and 256 of W: 216 and 256).
MAX_HELD = 208
#: Maximum rows of a tile's inputs that are multiplied by `mma.sync`, which does not keep fragments, and the size of
#: such elements; and maximum sums of which a thread has a second set for the next group. Source: converted_wgmma.cuh.
_MOST_SYNC, _SYNC_BITS, _MOST_TWICE = 16, 16, 32
#: Bits per line of codes, and number of groups that alternate in a thread's registers.
_LINE_BITS, _GROUPS = 1024, 2
#: Sets of fragments: one is multiplied while the next one is converted.
_FRAGMENT_SETS = 2


def engine_problem(workload: Workload, engine: Engine) -> str | None:
    """Why the engine does not convert the weights."""
    stored = [op for op in workload.tile_ops if op.weights]
    if stored and engine not in ENGINES:
        engines = " or ".join(ENGINES)
        return f"{stored[0].name} has weights in {stored[0].weights}, which {engine} does not convert: use {engines}"
    for op in stored:
        if problem := depth_problem(op, op.k):
            return f"{op.name} has k {op.k}: {problem}: use another k"
    return None


def most_converted(op: TileOp) -> int:
    """Maximum fp32 sums per thread."""
    if not op.weights:
        return MAX_ACCUMULATORS
    return MAX_GROUPED if op.weights.row.scales_sums else MAX_CONVERTED


def held_problem(op: TileOp, tile: Tile, groups: int, sums: int, most: int) -> str | None:
    """Why threads of `groups` warpgroups cannot hold that many fp32 sums, and fragments of their blocks of 64 rows of
    weights; `most` is the maximum of sums."""
    if sums > most:
        return f"tile {tile}: {sums} sums per thread: use at most {most}"
    if not op.weights or groups > 1 or (tile.m <= _MOST_SYNC and op.weights.row.element_bits == _SYNC_BITS):
        return None
    row, blocks = op.weights.row, 2 * sums // tile.m
    sets = 1 + (sums <= _MOST_TWICE) if row.scales_sums else 0
    fragments = _FRAGMENT_SETS * blocks * row.fragment_registers
    factors = max(sets, 1) * row.num_lists * 2 * blocks * (row.bundle // row.group) if row.group else 0
    held = sums * (1 + sets) + fragments + factors
    if held <= MAX_HELD:
        return None
    what = f"{held} registers of sums, fragments and factors, for weights in {op.weights}"
    return f"tile {tile}: {what}: use at most {MAX_HELD}"


def converted_problem(op: TileOp, tile: Tile, *, swap_ab: bool) -> str | None:
    """Why the weights of a tile cannot be converted."""
    if op.weights and not swap_ab:
        return f"weights in {op.weights} are converted as operand A: use swap_ab true"
    return depth_problem(op, tile.k)


def depth_problem(op: TileOp, depth: int) -> str | None:
    """Why a stage of `depth` elements of k cannot have converted weights."""
    if not op.weights:
        return None
    row = op.weights.row
    # Whole lines of codes, and pairs of groups.
    unit = max(_LINE_BITS // row.bits, _GROUPS * row.group)
    if depth % unit:
        return f"k must be a multiple of {unit}, for weights in {op.weights}"
    if op.k % (whole := depth if row.group else unit):
        what = "stages" if row.group else "lines"
        return f"{op.name} has k {op.k}: weights in {op.weights} need whole {what} of {whole}"
    return None
