"""Rules of the wgmma engine: TMA loads operands, warpgroups of 4 warps multiply; two rings, for inputs and for weights.

Both operands are read from shared memory: inputs and weights, or with swapped operands weights and inputs. A warpgroup
has blocks of 64 rows of operand A by all rows of operand B in registers.
"""

from __future__ import annotations

from itertools import pairwise

from tuner.core.legal.converted import converted_problem, held_problem, most_converted
from tuner.core.legal.own_tasks import own_clusters_problem, products, with_own_tasks
from tuner.core.legal.small_elements import max_promoted, stored_problem
from tuner.core.legal.warpgroups.beside import beside_bytes, sums_beside_problem
from tuner.core.legal.warpgroups.epilogue import epilogue_problem
from tuner.core.legal.warpgroups.parts import (
    columns_problem,
    max_sums_beside,
    operands_problem,
    piece_columns,
    promotes_at_once,
)
from tuner.core.legal.warpgroups.shapes import of_shape
from tuner.core.legal.warpgroups.waiting import waiting_problem
from tuner.core.legal.warpgroups.workloads import LINE_BYTES, line_elements
from tuner.core.legal.warpgroups.workloads import workload_problem as workload_problem
from tuner.core.plan.graph.products import product_tile, weight_stage_bytes
from tuner.core.plan.order.split_k import SUM_BYTES, num_steps
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.tiling import Epilogue, PartSums, Tile, Tiling, Warpgroups

#: Rows of operand A per instruction (PTX ISA, wgmma.mma_async); smaller blocks are multiplied as if they were full.
BLOCK_ROWS = 64
#: Rows per warp in a block of sums; in a smaller block, some warps have no rows and the others have all of theirs.
WARP_ROWS = 16
MAX_SHARED_ROWS = 256
#: The number of rows of operand B per instruction is a multiple of this number, which is also the swizzle's unit.
COLUMNS = 8
#: Rows of a pair if gate and up projection alternate in a stage: 8 of each.
PAIR_ROWS = 2 * COLUMNS
#: Maximum rows of operand B per instruction.
MAX_PRODUCT_COLUMNS = 256
STAGE_ALIGNMENT_BYTES = 8 * LINE_BYTES
#: Lines of k per stage.
STAGE_LINES = (1, 2, 4, 8)
NUM_WARPS = (4, 8, 12)
MOST_WARPS = NUM_WARPS[-1]
WARPS_PER_GROUP, THREADS_PER_GROUP = 4, 128
#: Warps of two warpgroups that take turns.
PING_PONG_WARPS = 2 * WARPS_PER_GROUP
MAX_STAGES = 16
MAX_INPUT_STAGES = 12
#: Stages of weights beyond the ring that a CTA may prefetch into the L2 at the start, the default first.
STARTUP_PREFETCHES = (0, 2, 4, 8)
#: CTAs of a cluster along m, n and k, and in total.
CLUSTER_EDGES, MAX_CLUSTER_SIZE = (1, 2, 4), 4
#: Maximum fp32 sums per thread, by warpgroups that multiply a task; with more, too few registers are left for the rest.
MAX_ACCUMULATORS = {1: 192, 2: 192, 3: 96}
#: Maximum fp32 sums per thread in three cases. BUSY: warpgroups take turns, parts of some op are added, CTAs split K
#: (with more accumulators, the compiler takes up to 9 s), or TMA stores the tiles. SHARING_GATED: CTAs split K of a
#: gated op that is not swapped (with 120 the compiler takes 5 s). BESIDE: the epilogue loads something, or has an
#: activation with many registers.
MAX_ACCUMULATORS_BUSY = 128
MAX_ACCUMULATORS_SHARING_GATED = 112
MAX_ACCUMULATORS_BESIDE = 176
#: Maximum sums with which parts can be added up without spilling, by warps that multiply: with 8, the limit applies if
#: there is a bias, weights are shared, or another op has as many sums and parts; with 12, always.
MAX_ACCUMULATORS_TO_ADD = {8: 112, 12: 68}
#: Registers per thread that a launch allows, by warps that multiply (65,536 registers, in units of 8).
REGISTERS = {4: 168, 8: 168, 12: 128}
#: Slots for the next tasks. Besides its stages, a kernel has these, flags, and a pair of barriers per stage and slot.
FEED_SLOTS = 4
FEED_SLOT_BYTES = 64
BARRIER_PAIR_BYTES = 16
FLAG_BYTES = 80
#: Slots for the sums exchanged by CTAs that split a tile's K; `sum_kib` in size, unless one vector per exchange takes
#: more.
SUM_SLOTS = 2
#: What a warp stores at once with TMA: its 16 rows of a block, one line wide; it has two such buffers.
CHUNK_BYTES, CHUNK_BUFFERS = WARP_ROWS * LINE_BYTES, 2


def stage_depths(dtype: Dtype) -> tuple[int, ...]:
    """Depths of a stage, elements of k."""
    return tuple(lines * line_elements(dtype) for lines in STAGE_LINES)


@of_shape
def stage_bytes(workload: Workload, tiling: Tiling) -> tuple[int, int]:
    """A stage of a CTA's ring of inputs and one of its ring of weights, bytes: each large enough for every op."""
    ops = [(op, tile) for _, op, tile in products(workload, tiling)]
    weights = max(weight_stage_bytes(op, tile, workload.dtype) for op, tile in ops)
    inputs = max(tile.m * tile.k for _, tile in ops) * workload.dtype.size_bytes
    return inputs, -(-weights // STAGE_ALIGNMENT_BYTES) * STAGE_ALIGNMENT_BYTES


def smem_bytes(workload: Workload, tiling: Tiling) -> int:
    """Both rings, buffers for TMA stores, the next tasks, other CTAs' sums, and the barriers, bytes: exactly the size
    with which the kernel is launched."""
    input_bytes, weight_bytes = stage_bytes(workload, tiling)
    num_barrier_pairs = tiling.input_stages + tiling.num_stages + FEED_SLOTS + (tiling.cluster_k > 1) * SUM_SLOTS
    rings = tiling.input_stages * input_bytes + tiling.num_stages * weight_bytes
    fixed = FEED_SLOTS * FEED_SLOT_BYTES + num_barrier_pairs * BARRIER_PAIR_BYTES + FLAG_BYTES
    return with_own_tasks(workload, tiling, rings + fixed + _bytes_beside(workload, tiling))


@of_shape
def _bytes_beside(workload: Workload, tiling: Tiling) -> int:
    staging = tiling.num_warps * CHUNK_BUFFERS * CHUNK_BYTES if tiling.epilogue is Epilogue.TMA else 0
    return staging + received_bytes(workload, tiling) + beside_bytes(workload, tiling, FEED_SLOTS)


def shares(num_rows: int, cluster_k: int) -> list[int]:
    """For each of the CTAs that split a tile's K: the rows of operand B that it adds up and stores. They are the tile's
    columns, or with swapped operands its rows. They are multiples of 32 if each CTA gets some and none exceeds its even
    share by more than 8, otherwise of 8. cluster_sum.cuh divides a tile in the same way."""
    num_groups = num_rows // COLUMNS
    sizes: list[int] = []
    for unit in (4, 1):
        bounds = [(num_groups * rank // cluster_k + unit // 2) // unit * unit for rank in range(cluster_k)]
        sizes = [end - begin for begin, end in pairwise((*bounds, num_groups))]
        if min(sizes) > 0 and max(sizes) <= -(-num_groups // cluster_k) + 1:
            break
    return [COLUMNS * groups for groups in sizes]


def received_bytes(workload: Workload, tiling: Tiling) -> int:
    """Space for the fp32 sums that a CTA receives from the others that split its tile's K, bytes."""
    if tiling.cluster_k == 1:
        return 0
    tiles = zip(workload.tile_ops, tiling.cta_tiles, strict=True)
    return SUM_SLOTS * max(sum_exchanges(op, tile, tiling)[1] for op, tile in tiles)


def sum_exchanges(op: TileOp, tile: Tile, tiling: Tiling) -> tuple[int, int]:
    """The number of exchanges in which CTAs that split the K of an op's tile send each other their sums, and the
    maximum bytes that one CTA receives per exchange. There are as few exchanges as fit the slots, each with at least a
    vector of a share, 8 columns of a warpgroup's block. cluster_sum.cuh computes the same."""
    held = shared_rows(op, tile, swap_ab=tiling.swap_ab)
    rows = min(held, BLOCK_ROWS * num_groups(tiling))
    per_group = -(-held // rows) * (1 if tiling.swap_ab else op.rows_per_column)
    most = max(shares(tile.m if tiling.swap_ab else tile.n, tiling.cluster_k)) // COLUMNS * per_group
    vector_bytes = (tiling.cluster_k - 1) * rows * COLUMNS * SUM_BYTES
    exchanges = min(most, SUM_SLOTS)
    while exchanges < most and SUM_SLOTS * -(-most // exchanges) * vector_bytes > 1024 * tiling.sum_kib:
        exchanges += 1
    return exchanges, -(-most // exchanges) * vector_bytes


def registers(workload: Workload, tiling: Tiling) -> int:
    """Registers per thread for which a kernel is compiled: an equal share, which the warpgroups then redistribute.
    With 256 threads the compiler may use more, since one CTA fits on an SM either way."""
    return REGISTERS[tiling.num_warps]


least_registers = registers  # the warpgroups share all


def num_groups(tiling: Tiling) -> int:
    """Warpgroups that multiply a task together: all, or one of two that take turns."""
    return 1 if tiling.warpgroups is Warpgroups.PING_PONG else tiling.num_warps // WARPS_PER_GROUP


def shared_rows(op: TileOp, tile: Tile, *, swap_ab: bool) -> int:
    """Rows of operand A that the warpgroups share."""
    return product_tile(op, tile).n if swap_ab else tile.m


def multiplied(op: TileOp, tile: Tile, groups: int, *, swap_ab: bool) -> tuple[int, int]:
    """Rows of A and of B that the tensor cores multiply for a tile; each warpgroup multiplies whole blocks of A."""
    per_pass = BLOCK_ROWS * groups
    rows = -(-shared_rows(op, tile, swap_ab=swap_ab) // per_pass) * per_pass
    return rows, tile.m if swap_ab else product_tile(op, tile).n


def num_accumulators(op: TileOp, tile: Tile, groups: int, *, swap_ab: bool) -> int:
    """fp32 sums per thread; 128 threads share each block of 64 rows."""
    rows, columns = multiplied(op, tile, groups, swap_ab=swap_ab)
    return rows * columns // (groups * THREADS_PER_GROUP)


def wgmma_columns(op: TileOp, tile: Tile, dtype: Dtype, *, swap_ab: bool) -> int:
    """Rows of B per instruction; for weights, gate and up projection together if a stage is one line and no part of
    the epilogue multiplies blocks of columns."""
    if swap_ab:
        return tile.m
    if columns := piece_columns(op, tile):
        return columns
    return op.rows_per_column * tile.n if tile.k == line_elements(dtype) else tile.n


def tiling_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the tiling cannot be compiled."""
    if problem := _shape_problem(workload, tiling):
        return problem
    if not 2 <= tiling.num_stages <= MAX_STAGES:
        return f"{tiling.num_stages} stages of weights: use 2 to {MAX_STAGES}"
    if not 2 <= tiling.input_stages <= MAX_INPUT_STAGES:
        return f"{tiling.input_stages} stages of inputs: use 2 to {MAX_INPUT_STAGES}"
    if not 0 <= tiling.window < tiling.num_stages:
        return f"window {tiling.window} of {tiling.num_stages} stages: use 0 (no limit) to {tiling.num_stages - 1}"
    if tiling.startup_prefetch not in STARTUP_PREFETCHES:
        return f"startup prefetch of {tiling.startup_prefetch} stages: use {', '.join(map(str, STARTUP_PREFETCHES))}"
    problem = _stored_problem(workload, tiling) or _reach_problem(workload, tiling) or _parts_problem(workload, tiling)
    return problem or waiting_problem(workload, tiling)


@of_shape
def _shape_problem(workload: Workload, tiling: Tiling) -> str | None:
    if tiling.num_warps not in NUM_WARPS:
        return f"{tiling.num_warps} warps: use {' or '.join(map(str, NUM_WARPS))}"
    if tiling.warpgroups is Warpgroups.PING_PONG and tiling.num_warps != PING_PONG_WARPS:
        return f"ping-pong of {tiling.num_warps} warps: two warpgroups take turns, use {PING_PONG_WARPS}"
    if problem := _cluster_problem(workload, tiling) or own_clusters_problem(workload, tiling):
        return problem
    groups, shares_k = num_groups(tiling), tiling.cluster_k > 1
    is_busy = tiling.warpgroups is Warpgroups.PING_PONG or bool(tiling.split_k) or tiling.epilogue is Epilogue.TMA
    for _, op, tile in products(workload, tiling):
        most = most_accumulators(op, groups, swap_ab=tiling.swap_ab, shares_k=shares_k, is_busy=is_busy)
        promoted = max_promoted(workload) if promotes_at_once(op, tile, swap_ab=tiling.swap_ab) else None
        most = min(most, promoted or most, most_converted(op))
        own = tile_problem(op, tile, groups, workload.dtype, swap_ab=tiling.swap_ab, most=most)
        if problem := own or _slice_problem(op, tile, tiling, workload.dtype):
            whose = f" (of one CTA of {'x'.join(map(str, tiling.cluster))})" if tiling.cluster_size > 1 else ""
            return problem + whose
    return None


@of_shape
def _stored_problem(workload: Workload, tiling: Tiling) -> str | None:
    problem = stored_problem(workload, tiling) or operands_problem(workload, tiling)
    return problem or epilogue_problem(workload, tiling, line_elements(workload.dtype))


def _cluster_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the tiling's clusters are impossible."""
    edges = tiling.cluster
    if any(edge not in CLUSTER_EDGES for edge in edges) or tiling.cluster_size > MAX_CLUSTER_SIZE:
        known, axes = ", ".join(map(str, CLUSTER_EDGES)), "m, n and k" if len(edges) > 2 else "m and n"
        given = " x ".join(map(str, edges))
        return f"clusters of {given} CTAs: use {known} along {axes}, up to {MAX_CLUSTER_SIZE} in all"
    for tile in tiling.tiles:
        if tile.m % edges[0] or tile.n % edges[1]:
            return f"tile {tile}: {edges[0]} x {edges[1]} CTAs cannot split it evenly"
    return _shared_k_problem(workload, tiling) if tiling.cluster_k > 1 else None


def _shared_k_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why several CTAs cannot split a tile's K."""
    sharers = tiling.cluster_k
    if tiling.warpgroups is Warpgroups.PING_PONG:
        return f"ping-pong when {sharers} CTAs split a tile's K: use cooperative"
    if tiling.epilogue is Epilogue.TMA:
        return f"epilogue tma when {sharers} CTAs split a tile's K, and each stores a share: use direct"
    if tiling.split_k:
        return f"parts of tiles when {sharers} CTAs split a tile's K: use an empty split_k, or cluster_k 1"
    for op, tile in zip(workload.tile_ops, tiling.cta_tiles, strict=True):
        if (steps := num_steps(op, tile)) < sharers:
            return f"{sharers} CTAs split the K of {op.name}: use at most one for each of {steps} k-steps of {tile.k}"
        size, what = (tile.m, "rows") if tiling.swap_ab else (tile.n, "columns")
        if size < sharers * COLUMNS:
            return f"tile {tile}: {sharers} CTAs split its K, and each must finish {COLUMNS} of its {what}"
    return None


def stage_slice(rows: int, lines: int, sharers: int) -> tuple[int, int]:
    """Rows that each of the CTAs sharing a stage of `rows` rows loads, and lines of them: either some of the stage's
    lines, or some rows of one line."""
    line_slices = min(lines, sharers)
    return rows // (sharers // line_slices), lines // line_slices


def is_paired(op: TileOp, tiling: Tiling) -> bool:
    """Whether 8 rows of the op's gate and 8 of its up projection alternate in a stage of weights."""
    return tiling.swap_ab and op.rows_per_column > 1


def _slice_problem(op: TileOp, tile: Tile, tiling: Tiling, dtype: Dtype) -> str | None:
    """Why the CTAs that share a stage cannot each load a slice of it."""
    stage_lines = tile.k // line_elements(dtype)
    weight_rows, step = (2 * tile.n, PAIR_ROWS) if is_paired(op, tiling) else (tile.n, COLUMNS)
    for what, rows, sharers, each in (
        ("inputs", tile.m, tiling.cluster_n, COLUMNS),
        ("weights", weight_rows, tiling.cluster_m, step),
    ):
        own, lines = stage_slice(rows, stage_lines, sharers)
        if own * lines * sharers != rows * stage_lines or own % each:
            return (
                f"tile {tile}: {sharers} CTAs share its {what}, {rows} rows of {stage_lines} lines: each must load "
                f"whole lines, or a multiple of {each} rows of one"
            )
    return None


def _reach_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the tensor cores would read outside the kernel's shared memory."""
    input_bytes, weight_bytes = stage_bytes(workload, tiling)
    behind = tiling.input_stages * input_bytes if tiling.swap_ab else tiling.num_stages * weight_bytes
    ring = "inputs'" if tiling.swap_ab else "weights'"
    for _, op, tile in products(workload, tiling):
        held = shared_rows(op, tile, swap_ab=tiling.swap_ab)
        rows = multiplied(op, tile, num_groups(tiling), swap_ab=tiling.swap_ab)[0]
        if (beyond := (rows - held) * LINE_BYTES) > behind:
            return f"tile {tile} is read as {rows} rows, {beyond} bytes into the {ring} ring, which has {behind}"
    return None


@of_shape
def _parts_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why parts cannot be added, or why the compiler would spill registers."""
    most = MAX_ACCUMULATORS_TO_ADD.get(tiling.num_warps, MAX_ACCUMULATORS_BUSY)
    num_large, per_pass = 0, BLOCK_ROWS * num_groups(tiling)
    if tiling.split_k and tiling.num_warps == MOST_WARPS and tiling.epilogue is Epilogue.TMA:
        return f"epilogue tma with {MOST_WARPS} warps that add parts spills: use direct"
    for index, op, tile in products(workload, tiling):
        rows = shared_rows(op, tile, swap_ab=tiling.swap_ab)
        if tiling.num_parts(index) > 1 and rows > per_pass and rows % per_pass:
            return f"tile {tile}: parts of {rows} rows of W are not whole blocks: use up to {per_pass}, or multiples"
        held = num_accumulators(op, tile, num_groups(tiling), swap_ab=tiling.swap_ab)
        if problem := sums_beside_problem(workload, tiling, index, held):
            return problem
        if held <= most or (tiling.part_sums is PartSums.SCATTERED and all(part.is_plain(op) for part in op.parts)):
            continue  # a part adds up a share of its sums, so the registers of the other sums are free
        if tiling.warpgroups is Warpgroups.PING_PONG and tiling.cluster_size > 1:
            return f"tile {tile}: {held} sums per thread spill with ping-pong in clusters: use at most {most}"
        if tiling.split_k and op.bias and tiling.warpgroups is Warpgroups.PING_PONG:
            what = f"{held} sums per thread and a bias"
            return f"tile {tile}: {what} spill with ping-pong when parts are added: use at most {most}"
        if tiling.num_parts(index) == 1:
            continue
        if tiling.warpgroups is Warpgroups.PING_PONG:
            return f"tile {tile}: {held} sums per thread spill with ping-pong when parts are added: use at most {most}"
        if tiling.num_warps == MOST_WARPS:
            return f"tile {tile}: {held} sums per thread spill when {MOST_WARPS} warps add parts: use at most {most}"
        if op.bias:
            return f"tile {tile}: {held} sums per thread spill when parts and a bias are added: use at most {most}"
        if tiling.cluster_m > 1:
            return f"tile {tile}: {held} sums per thread spill if CTAs share weights and add parts: use at most {most}"
        if (num_large := num_large + 1) > 1:
            return f"tile {tile}: {held} sums per thread spill when another op adds parts: use at most {most}"
    return None


def tile_problem(op: TileOp, tile: Tile, groups: int, dtype: Dtype, *, swap_ab: bool, most: int) -> str | None:
    """Why `groups` warpgroups cannot compute this tile of an op; `most` comes from `most_accumulators`."""
    held = shared_rows(op, tile, swap_ab=swap_ab)
    if problem := swapped_rows_problem(held, groups) if swap_ab else rows_problem(held, groups):
        return f"tile {tile}: {problem}"
    if swap_ab and op.rows_per_column > 1 and op.k % (line := line_elements(dtype)):
        return f"{op.name} has k {op.k}: swapped operands of a gated op need a multiple of {line}"
    if (edge := tile.m if swap_ab else tile.n) < COLUMNS or edge % COLUMNS:
        return f"tile {tile}: {'m' if swap_ab else 'n'} must be a positive multiple of {COLUMNS}"
    if (columns := tile.m if swap_ab else product_tile(op, tile).n) > MAX_PRODUCT_COLUMNS:
        of_both = f", of {op.halves}" if op.halves else ""
        what = f"{columns} rows of A" if swap_ab else f"{columns} rows of W{of_both}"
        return f"tile {tile}: {what}; one instruction takes up to {MAX_PRODUCT_COLUMNS}"
    if tile.k not in (depths := stage_depths(dtype)):
        return f"tile {tile}: k must be one of {', '.join(map(str, depths))}, which the swizzle supports"
    if problem := converted_problem(op, tile, swap_ab=swap_ab) or columns_problem(op, tile, swap_ab=swap_ab):
        return f"tile {tile}: {problem}"
    held = num_accumulators(op, tile, groups, swap_ab=swap_ab)
    if op.epilogue and (beside := max_sums_beside(op, groups, swap_ab=swap_ab)) is not None:
        most = min(most, beside)
    if not (swap_ab or groups == 1 or all(part.is_plain(op) for part in op.parts)):
        most = min(most, MAX_ACCUMULATORS_BESIDE)
    return held_problem(op, tile, groups, held, most)


def most_accumulators(op: TileOp, groups: int, *, swap_ab: bool, shares_k: bool, is_busy: bool) -> int:
    """Maximum fp32 sums per thread; `is_busy` if warpgroups do more than multiply, add shares of k and store."""
    most = MAX_ACCUMULATORS[groups]
    if shares_k and op.rows_per_column > 1 and not swap_ab:
        return min(most, MAX_ACCUMULATORS_SHARING_GATED)
    return min(most, MAX_ACCUMULATORS_BUSY) if shares_k or is_busy else most


def rows_problem(held: int, groups: int) -> str | None:
    """Why `groups` warpgroups cannot share `held` rows of A of a CTA's tile: either each has one block, the last one
    possibly smaller, or all have the same number of whole blocks."""
    rows = BLOCK_ROWS * groups
    is_one_block_each = rows - BLOCK_ROWS < held <= rows and held % WARP_ROWS == 0
    if is_one_block_each or (0 < held <= MAX_SHARED_ROWS and held % rows == 0):
        return None
    more = f", or a multiple of {rows} up to {MAX_SHARED_ROWS}" if 2 * rows <= MAX_SHARED_ROWS else ""
    lowest = rows - BLOCK_ROWS + WARP_ROWS
    return f"m of {WARPS_PER_GROUP * groups} warps must be a multiple of {WARP_ROWS} from {lowest} to {rows}{more}"


def swapped_rows_problem(held: int, groups: int) -> str | None:
    """Why `groups` warpgroups cannot share `held` rows of W of a CTA's tile: each has the same number of blocks, the
    last ones possibly incomplete."""
    lowest = BLOCK_ROWS * (groups - 1) + WARP_ROWS
    if lowest <= held <= MAX_SHARED_ROWS and held % WARP_ROWS == 0:
        return None
    bounds = f"a multiple of {WARP_ROWS} from {lowest} to {MAX_SHARED_ROWS}"
    return f"{held} rows of W: swapped, those of {WARPS_PER_GROUP * groups} warps must be {bounds}"
