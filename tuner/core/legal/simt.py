"""Rules of the simt engine: dot products on the CUDA cores for one to four rows, weights through a cp.async ring.

A warp computes some columns of the tile, i.e. rows of W. Its lanes split K into chunks of 16 bytes, and each lane
has a sum for each pair of a row of A and a row of W.
"""

from __future__ import annotations

from tuner.core.legal.one_ring import one_ring_problem
from tuner.core.plan.graph.products import product_tiles
from tuner.core.plan.order.split_k import SUM_BYTES
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.resources import MAX_REGISTERS_PER_THREAD
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.tiling import Tile, Tiling

TILE_MS = (1, 2, 4)
#: Bytes of one copy, and of a warp's copies, one per lane.
CHUNK_BYTES = 16
WARP_BYTES = 32 * CHUNK_BYTES
#: Bytes of k per stage: whole passes of a warp.
STAGE_ROW_BYTES = (WARP_BYTES, 2 * WARP_BYTES, 4 * WARP_BYTES)
NUM_WARPS = (4, 8)
MAX_STAGES = 16
#: Maximum sums per warp, since each lane stores at most one.
MAX_SUMS = 32
#: Maximum chunks per thread and stage; more would mean long code and few stages.
MAX_CHUNKS = 48
#: Registers for counters, a chunk of weights and compiler overhead; and for addresses, which are recomputed if
#: registers are scarce.
_OTHER_REGISTERS, _CHUNK_REGISTERS = 72, 4


def stage_depths(dtype: Dtype) -> tuple[int, ...]:
    """Depths of a stage, elements of k."""
    return tuple(map(dtype.elements, STAGE_ROW_BYTES))


def workload_problem(workload: Workload, gpu: Gpu) -> str | None:
    """Why no tiling of this engine runs the workload."""
    del gpu
    chunk = workload.dtype.elements(CHUNK_BYTES)
    for op in workload.tile_ops:
        if op.IS_PRODUCT and op.k % chunk:
            return f"{op.name} has k {op.k}: the simt engine reads chunks of {chunk} elements, use mma"
    return None


def _chunks(op: TileOp, tile: Tile, num_warps: int, dtype: Dtype) -> int:
    """Chunks per thread and stage, for its rows of W and for all rows of A."""
    return (tile.n * op.rows_per_column // num_warps + tile.m) * tile.k * dtype.size_bytes // WARP_BYTES


def stage_bytes(workload: Workload, tiling: Tiling) -> int:
    """Bytes of a stage: all threads' chunks for the op with the most; every warp loads its own rows of A."""
    size = workload.dtype.size_bytes
    tiles = product_tiles(workload, tiling)
    return max((tile.n + tiling.num_warps * tile.m) * tile.k for tile in tiles) * size


def smem_bytes(workload: Workload, tiling: Tiling) -> int:
    """Size of the ring and of a tile's sums after it, bytes."""
    sums = max(tile.m * tile.n for tile in product_tiles(workload, tiling))
    return tiling.num_stages * stage_bytes(workload, tiling) + sums * SUM_BYTES


def registers(workload: Workload, tiling: Tiling) -> int:
    """The minimum registers, and those for addresses of each chunk."""
    both = zip(workload.tile_ops, tiling.tiles, strict=True)
    chunks = max(_chunks(op, tile, tiling.num_warps, workload.dtype) for op, tile in both)
    return min(least_registers(workload, tiling) + _CHUNK_REGISTERS * chunks, MAX_REGISTERS_PER_THREAD)


def least_registers(workload: Workload, tiling: Tiling) -> int:
    """Sums, a chunk of each row of A in fp32, and the rest."""
    rows = [(tile.m, tile.n // tiling.num_warps) for tile in product_tiles(workload, tiling)]
    return max(m * (n + workload.dtype.elements(CHUNK_BYTES)) for m, n in rows) + _OTHER_REGISTERS


def tiling_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the tiling cannot be compiled."""
    if tiling.num_warps not in NUM_WARPS:
        return f"{tiling.num_warps} warps: use {' or '.join(map(str, NUM_WARPS))}"
    for op, tile in zip(workload.tile_ops, tiling.tiles, strict=True):
        if problem := tile_problem(op, tile, tiling.num_warps, workload.dtype):
            return problem
    if not 2 <= tiling.num_stages <= MAX_STAGES:
        return f"{tiling.num_stages} stages: use 2 to {MAX_STAGES}"
    return one_ring_problem(tiling)


def tile_problem(op: TileOp, tile: Tile, num_warps: int, dtype: Dtype) -> str | None:
    """Why `num_warps` warps cannot compute this tile of an op."""
    if tile.m not in TILE_MS:
        return f"tile {tile}: m must be one of {', '.join(map(str, TILE_MS))}"
    if tile.n < 1 or tile.n % num_warps:
        return f"tile {tile}: n must be a multiple of the {num_warps} warps, which share its columns"
    if tile.k not in (depths := stage_depths(dtype)):
        return f"tile {tile}: k must be one of {', '.join(map(str, depths))}, a whole number of passes of a warp"
    if (sums := tile.m * tile.n * op.rows_per_column // num_warps) > MAX_SUMS:
        return f"tile {tile}: {sums} sums per warp: use at most {MAX_SUMS}, one for each lane"
    if (chunks := _chunks(op, tile, num_warps, dtype)) > MAX_CHUNKS:
        return (
            f"tile {tile}: {chunks} chunks per thread and stage: use at most {MAX_CHUNKS}; a smaller n or k gives fewer"
        )
    return None
