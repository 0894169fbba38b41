"""Rules of the wgmma engine: TMA brings operands, warpgroups of 4 warps multiply; two rings, of inputs and of weights.

A warpgroup holds blocks of 64 tile rows, tile n wide, in registers; W and A are read from shared memory.
"""

from __future__ import annotations

import numpy as np

from tuner.core.gpu import Gpu
from tuner.core.tiles import product_tile
from tuner.core.tiling import Tile, Tiling, Warpgroups
from tuner.core.workload import GemmOp, Workload

#: Not the next architecture's: the instructions are those of sm_90a alone.
COMPUTE_CAPABILITY = (9, 0)
#: TMA reads rows that begin and end at multiples of 16 bytes.
ROW_ELEMENTS = 8
#: Rows of A of one instruction (PTX ISA, wgmma.mma_async); lower blocks are multiplied as if they had them.
BLOCK_ROWS = 64
#: Rows of a warp in a block of sums: of a lower block some warps hold none, the others whole ones.
WARP_ROWS = 16
MAX_TILE_M = 256
#: The instruction takes columns in steps of this, which is also the swizzle's.
COLUMNS = 8
#: Columns of one instruction.
MAX_PRODUCT_COLUMNS = 256
#: Whole lines of the 128-byte swizzle.
LINE_BYTES, LINE_ELEMENTS = 128, 64
STAGE_DEPTHS = (64, 128, 256, 512)
NUM_WARPS = (4, 8, 12)
MOST_WARPS = NUM_WARPS[-1]
WARPS_PER_GROUP, THREADS_PER_GROUP = 4, 128
#: Two warpgroups take turns.
PING_PONG_WARPS = 2 * WARPS_PER_GROUP
MAX_STAGES = 16
MAX_INPUT_STAGES = 12
#: CTAs of a cluster along m, along n, and in all.
CLUSTER_EDGES = (1, 2, 4)
MAX_CLUSTER_SIZE = 4
#: fp32 sums of one thread, by warpgroups that multiply a task; with more there are too few registers for the rest.
MAX_ACCUMULATORS = {1: 128, 2: 128, 3: 96}
#: Beside more sums, adding up parts spilled, by warps that multiply: with 8 where there is a bias, or weights are
#: shared, or where another op has as many and parts; with 12 everywhere.
MAX_ACCUMULATORS_TO_ADD = {8: 112, 12: 68}
#: CTAs, one per SM, whose first tasks the launch parameter has room for.
MAX_SMS = 160
#: What a launch leaves each thread, by warps that multiply (65,536 registers, in units of 8).
REGISTERS = {4: 168, 8: 168, 12: 128}
#: Beside the stages: the tasks that come next, a pair of barriers for each stage and each of these, flags.
FEED_SLOTS = 4
FEED_SLOT_BYTES = 64
BARRIER_PAIR_BYTES = 16
FLAG_BYTES = 64

#: Share of the tensor cores' rate that the main loop attains, by rows of W of a task: an instruction reads 64 rows of A
#: and as many of W from shared memory, so the more rows of W, the more products for a byte.
_TENSOR_SHARES = ((16, 0.3), (32, 0.5), (64, 0.65), (128, 0.8), (176, 0.9))


def workload_problem(workload: Workload, gpu: Gpu) -> str | None:
    """Why no tiling of this engine runs the workload on the GPU."""
    if gpu.compute_capability != COMPUTE_CAPABILITY:
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}: the wgmma engine is for 9.0 alone, say mma"
    if gpu.num_sms > MAX_SMS:
        return f"{gpu.name} has {gpu.num_sms} SMs: the wgmma engine knows up to {MAX_SMS} CTAs, say mma"
    for op in workload.ops:
        if op.n % ROW_ELEMENTS or op.k % ROW_ELEMENTS:
            return f"{op.name} has n {op.n} and k {op.k}: TMA needs multiples of {ROW_ELEMENTS}, say mma"
    return None


def stage_bytes(workload: Workload, tiling: Tiling) -> tuple[int, int]:
    """A stage of a CTA's inputs' ring and one of its weights', bytes: each as large as the op that needs most."""
    size = workload.dtype.size_bytes
    tiles = [product_tile(op, tile) for op, tile in zip(workload.ops, tiling.cta_tiles, strict=True)]
    return max(tile.m * tile.k for tile in tiles) * size, max(tile.n * tile.k for tile in tiles) * size


def smem_bytes(workload: Workload, tiling: Tiling) -> int:
    """Both rings, the tasks that come next, and the barriers, bytes: the kernel is launched with exactly that."""
    input_bytes, weight_bytes = stage_bytes(workload, tiling)
    num_barrier_pairs = tiling.input_stages + tiling.num_stages + FEED_SLOTS
    rings = tiling.input_stages * input_bytes + tiling.num_stages * weight_bytes
    return rings + FEED_SLOTS * FEED_SLOT_BYTES + num_barrier_pairs * BARRIER_PAIR_BYTES + FLAG_BYTES


def registers(workload: Workload, tiling: Tiling) -> int:
    """What it is compiled for: an equal share, which the warpgroups then redistribute. With 256 threads the compiler
    may take more; one CTA fits an SM either way."""
    del workload
    return REGISTERS[tiling.num_warps]


def least_registers(workload: Workload, tiling: Tiling) -> int:
    """As many: the warpgroups share what there is."""
    return registers(workload, tiling)


def num_groups(tiling: Tiling) -> int:
    """Warpgroups that multiply a task together: all, or one of two that take turns."""
    return 1 if tiling.warpgroups is Warpgroups.PING_PONG else tiling.num_warps // WARPS_PER_GROUP


def multiplied_rows(tile: Tile, groups: int) -> int:
    """Rows that the tensor cores multiply for a tile: whole blocks of each warpgroup."""
    return -(-tile.m // (BLOCK_ROWS * groups)) * BLOCK_ROWS * groups


def num_accumulators(op: GemmOp, tile: Tile, groups: int) -> int:
    """fp32 sums of a thread: 128 threads share each block of 64 rows."""
    return multiplied_rows(tile, groups) * product_tile(op, tile).n // (groups * THREADS_PER_GROUP)


def tensor_share(product_columns: int) -> float:
    """Share of the tensor cores' rate that a task with so many rows of W attains, by straight lines between what was
    measured."""
    columns, shares = zip(*_TENSOR_SHARES, strict=True)
    return float(np.interp(product_columns, columns, shares))


def tiling_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the tiling cannot be compiled."""
    if tiling.num_warps not in NUM_WARPS:
        return f"{tiling.num_warps} warps: use {' or '.join(map(str, NUM_WARPS))}"
    if tiling.warpgroups is Warpgroups.PING_PONG and tiling.num_warps != PING_PONG_WARPS:
        return f"ping-pong of {tiling.num_warps} warps: two warpgroups take turns, say {PING_PONG_WARPS}"
    if problem := _cluster_problem(workload, tiling):
        return problem
    for op, tile in zip(workload.ops, tiling.cta_tiles, strict=True):
        if problem := tile_problem(op, tile, num_groups(tiling)) or _slice_problem(tile, tiling):
            return problem + (
                f" (of one CTA of {tiling.cluster_m}x{tiling.cluster_n})" if tiling.cluster_size > 1 else ""
            )
    if not 2 <= tiling.num_stages <= MAX_STAGES:
        return f"{tiling.num_stages} stages of weights: use 2 to {MAX_STAGES}"
    if not 2 <= tiling.input_stages <= MAX_INPUT_STAGES:
        return f"{tiling.input_stages} stages of inputs: use 2 to {MAX_INPUT_STAGES}"
    if not 0 <= tiling.window < tiling.num_stages:
        return f"window {tiling.window} of {tiling.num_stages} stages: use 1 to {tiling.num_stages - 1}, 0 for no limit"
    return _reach_problem(workload, tiling) or _spill_problem(workload, tiling)


def _cluster_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why there are no such clusters."""
    edges = tiling.cluster_m, tiling.cluster_n
    if any(edge not in CLUSTER_EDGES for edge in edges) or tiling.cluster_size > MAX_CLUSTER_SIZE:
        known = ", ".join(map(str, CLUSTER_EDGES))
        return f"clusters of {edges[0]} x {edges[1]} CTAs: use {known} along m and n, up to {MAX_CLUSTER_SIZE} in all"
    for tile in tiling.tiles:
        if tile.m % edges[0] or tile.n % edges[1]:
            return f"tile {tile}: {edges[0]} x {edges[1]} CTAs cannot cut it into equal parts"
    return None


def stage_slice(rows: int, k: int, sharers: int) -> tuple[int, int]:
    """Rows, and lines of them, that each of the CTAs that share a stage of `rows` rows brings of it: some of its lines,
    or some rows of one line."""
    lines = k // LINE_ELEMENTS
    line_parts = min(lines, sharers)
    return rows // (sharers // line_parts), lines // line_parts


def _slice_problem(tile: Tile, tiling: Tiling) -> str | None:
    """Why the CTAs that share a stage cannot bring a slice of it each."""
    for what, rows, sharers in (("inputs", tile.m, tiling.cluster_n), ("weights", tile.n, tiling.cluster_m)):
        own, lines = stage_slice(rows, tile.k, sharers)
        if own * lines * sharers * LINE_ELEMENTS != rows * tile.k or own % COLUMNS:
            return (
                f"tile {tile}: {sharers} CTAs share its {what}, {rows} rows of {tile.k // LINE_ELEMENTS} lines: "
                f"each must bring whole lines, or a multiple of {COLUMNS} rows of one"
            )
    return None


def _reach_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the tensor cores would read what is no shared memory of the kernel's."""
    behind = tiling.num_stages * stage_bytes(workload, tiling)[1]
    for tile in tiling.cta_tiles:
        rows = multiplied_rows(tile, num_groups(tiling))
        if (beyond := (rows - tile.m) * LINE_BYTES) > behind:
            return f"tile {tile} is read as {rows} rows, {beyond} bytes into the weights' ring, which has {behind}"
    return None


def _spill_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the compiler would spill registers."""
    most = MAX_ACCUMULATORS_TO_ADD.get(tiling.num_warps, MAX_ACCUMULATORS[1])
    num_large = 0
    for index, (op, tile) in enumerate(zip(workload.ops, tiling.cta_tiles, strict=True)):
        held = num_accumulators(op, tile, num_groups(tiling))
        if held <= most:
            continue
        if tiling.warpgroups is Warpgroups.PING_PONG and tiling.cluster_size > 1:
            return f"tile {tile}: {held} sums a thread spill with ping-pong in clusters: use at most {most}"
        if tiling.num_parts(index) == 1:
            continue
        if tiling.warpgroups is Warpgroups.PING_PONG:
            return f"tile {tile}: {held} sums a thread spill with ping-pong where parts are added: use at most {most}"
        if tiling.num_warps == MOST_WARPS:
            return f"tile {tile}: {held} sums a thread spill where {MOST_WARPS} warps add parts: use at most {most}"
        if op.bias:
            return f"tile {tile}: {held} sums a thread spill where parts and a bias are added: use at most {most}"
        if tiling.cluster_m > 1:
            return f"tile {tile}: {held} sums a thread spill where CTAs share weights and add parts: use at most {most}"
        num_large += 1
        if num_large > 1:
            return f"tile {tile}: {held} sums a thread spill where another op adds parts, too: use at most {most}"
    return None


def tile_problem(op: GemmOp, tile: Tile, groups: int) -> str | None:
    """Why these warpgroups cannot compute this tile of an op."""
    if problem := height_problem(tile.m, groups):
        return f"tile {tile}: {problem}"
    if tile.n < COLUMNS or tile.n % COLUMNS:
        return f"tile {tile}: n must be a positive multiple of {COLUMNS}"
    if (columns := product_tile(op, tile).n) > MAX_PRODUCT_COLUMNS:
        what = f"{columns} rows of W, of gate and up" if op.gated else f"{columns} rows of W"
        return f"tile {tile}: {what}; one instruction takes up to {MAX_PRODUCT_COLUMNS}"
    if tile.k not in STAGE_DEPTHS:
        return f"tile {tile}: k must be one of {', '.join(map(str, STAGE_DEPTHS))}, which the swizzle is made for"
    if (held := num_accumulators(op, tile, groups)) > MAX_ACCUMULATORS[groups]:
        return f"tile {tile}: {held} sums a thread: use at most {MAX_ACCUMULATORS[groups]}"
    return None


def height_problem(tile_m: int, groups: int) -> str | None:
    """Why these warpgroups cannot share so many rows of a CTA's tile: each has a block, the last one perhaps a lower
    one, or all have as many whole ones."""
    rows = BLOCK_ROWS * groups
    is_one_block_each = rows - BLOCK_ROWS < tile_m <= rows and tile_m % WARP_ROWS == 0
    if is_one_block_each or (0 < tile_m <= MAX_TILE_M and tile_m % rows == 0):
        return None
    more = f", or a multiple of {rows} up to {MAX_TILE_M}" if 2 * rows <= MAX_TILE_M else ""
    lowest = rows - BLOCK_ROWS + WARP_ROWS
    return f"m of {WARPS_PER_GROUP * groups} warps must be a multiple of {WARP_ROWS} from {lowest} to {rows}{more}"
