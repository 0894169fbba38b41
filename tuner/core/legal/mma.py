"""Rules of the mma engine: mma.sync with multi-stage cp.async, and one ring of stages with A and W."""

from __future__ import annotations

from functools import cache, lru_cache

from tuner.core.legal.converted import depth_problem, most_converted
from tuner.core.legal.one_ring import one_ring_problem
from tuner.core.plan.graph.products import product_tiles, weight_stage_bytes
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.resources import MAX_REGISTERS_PER_THREAD
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.tiling import Tile, Tiling

#: Bytes of k per stage that the shared-memory swizzle supports.
STAGE_ROW_BYTES = (64, 128, 256)
#: Bytes of one cp.async.
COPY_BYTES = 16
MAX_STAGES = 8
NUM_WARPS = (4, 8)
#: Bytes of elements of k per stage for weights that are stored in fewer bits.
CONVERTED_ROW_BYTES = (256, 512, 1024)
#: Registers for addresses, loop counters, epilogue and compiler overhead, by bytes of k per stage; 19 of 20 kernels of
#: the whole space need no more. Near the per-thread limit, the compiler uses fewer.
_OTHER_REGISTERS = {64: 70, 128: 76, 256: 90, 512: 96, 1024: 100}
#: fp32 sums per thread of the largest warp tile, 64 x 64, and the 16-byte copies per thread and stage for which it
#: leaves registers; with more, ptxas spilled in most kernels of the whole space, for sm_80 and sm_90a.
_FULL_ACCUMULATORS = 128
_MAX_COPIES_BESIDE_FULL_ACCUMULATORS = 16
#: Minimum registers besides accumulators and fragments; with fewer, ptxas spilled if registers were capped.
_LEAST_OTHER_REGISTERS = 64
#: Number of the shallowest stages with which, given full accumulators, ptxas spilled for sm_80 if the other op's tile
#: was smaller; with any other number it did not. With more than two ops, it also spilled for sm_90a with deeper ones.
_RING_THAT_SPILLS = 6
#: Maximum accumulators for adding the parts of a tile with the shallowest stages, whose main loop is the tightest;
#: with more, ptxas spilled.
_MOST_ACCUMULATORS_TO_ADD = 96

#: Warp grids to try for a tile, in order of preference, by number of warps: (warps along m, warps along n).
_WARP_GRIDS = {4: ((1, 4), (2, 2), (4, 1)), 8: ((1, 8), (2, 4), (4, 2), (8, 1))}


@cache
def stage_depths(dtype: Dtype, *, converts: bool = False) -> tuple[int, ...]:
    """Depths of a stage, elements of k; `converts`: of weights that are stored in fewer bits."""
    return tuple(map(dtype.elements, CONVERTED_ROW_BYTES if converts else STAGE_ROW_BYTES))


def converts_weights(workload: Workload) -> bool:
    """Whether weights are stored in fewer bits; all products of a workload have one format."""
    for op in workload.tile_ops:  # noqa: SIM110 - of a hundred thousand calls, each of a generator would count
        if op.weights:
            return True
    return False


@lru_cache(maxsize=4096)
def warp_grid(tile: Tile, num_warps: int, rows_per_column: int = 1) -> tuple[int, int] | None:
    """Warps along m and n whose warp tile is legal and reads the fewest operand bytes; None if there are none.

    The m of a legal warp tile is a multiple of 16, its n a multiple of 8 (the mma.sync.m16n8k16 fragment). Neither m
    nor its rows of W, `rows_per_column` for each column, exceed 64 (128 fp32 accumulators per thread). Each warp loads
    its rows of A and W in every k-step, so the squarest grid is chosen.
    """
    legal = []
    for warps_m, warps_n in _WARP_GRIDS.get(num_warps, ()):
        warp_m, warp_n = tile.m // warps_m, tile.n // warps_n * rows_per_column
        whole = tile.m % (16 * warps_m) == 0 and tile.n % (8 * warps_n) == 0
        if whole and warp_m <= 64 and warp_n <= 64:
            legal.append((warp_m + warp_n, warps_m, warps_n))
    return min(legal)[1:] if legal else None


def workload_problem(workload: Workload, gpu: Gpu) -> str | None:
    """None, since the mma engine runs every shape on every GPU that our kernels support."""
    del workload, gpu
    return None


def smem_bytes(workload: Workload, tiling: Tiling) -> int:
    """Size of a ring whose stages hold the A and W slices of the larger op, bytes."""
    size = workload.dtype.size_bytes
    if converts_weights(workload):
        both = zip(workload.tile_ops, tiling.tiles, strict=True)
        dtype = workload.dtype
        return tiling.num_stages * max(t.m * t.k * size + weight_stage_bytes(op, t, dtype) for op, t in both)
    return tiling.num_stages * max([(tile.m + tile.n) * tile.k for tile in product_tiles(workload, tiling)]) * size


def registers(workload: Workload, tiling: Tiling) -> int:
    """fp32 accumulators, double-buffered fragments, and the rest.

    Source: fragment sizes of mma.sync.m16n8k16, PTX ISA, "Matrix fragments for mma.m16n8k16".
    """
    return min(_wanted_registers(workload, tiling), MAX_REGISTERS_PER_THREAD)


def _wanted_registers(workload: Workload, tiling: Tiling) -> int:
    """Same as `registers`, even if a thread cannot have so many."""
    others, size = _OTHER_REGISTERS, workload.dtype.size_bytes
    return _most_fragment_registers(workload, tiling) + max([others[tile.k * size] for tile in tiling.tiles])


def least_registers(workload: Workload, tiling: Tiling) -> int:
    """Accumulators, fragments of one slice, and fixed overhead."""
    return _most_fragment_registers(workload, tiling) + _LEAST_OTHER_REGISTERS


def _most_fragment_registers(workload: Workload, tiling: Tiling) -> int:
    """Maximum over the ops."""
    both, num_warps = zip(workload.tile_ops, tiling.tiles, strict=True), tiling.num_warps
    return max(
        [
            _fragment_registers(tile, num_warps, op.rows_per_column)
            + (_converting_registers(op, tile, num_warps) if op.weights else 0)
            for op, tile in both
        ]
    )


@lru_cache(maxsize=4096)
def _fragment_registers(tile: Tile, num_warps: int, rows_per_column: int) -> int:
    """Accumulators and double-buffered operand fragments of a thread."""
    warps_m, warps_n = warp_grid(tile, num_warps, rows_per_column) or (1, 1)
    warp_m, warp_n = tile.m // warps_m, tile.n // warps_n * rows_per_column
    return warp_m * warp_n // 32 + 2 * (warp_m // 16 * 4 + warp_n // 8 * 2)


def _converting_registers(op: TileOp, tile: Tile, num_warps: int) -> int:
    """What a thread that converts weights has in addition: sums of groups, the second slice of inputs of a word of
    codes, and for each fragment of weights the data of a group and the elements of a word."""
    assert op.weights, op.name
    warps_m, warps_n = warp_grid(tile, num_warps, op.rows_per_column) or (1, 1)
    warp_m, warp_n = tile.m // warps_m, tile.n // warps_n * op.rows_per_column
    sums = warp_m * warp_n // 32 if op.weights.row.scales_sums else 0
    return sums + warp_m // 16 * 8 + warp_n // 8 * 4 + 4


def tiling_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the tiling cannot be compiled."""
    for op, tile in zip(workload.tile_ops, tiling.tiles, strict=True):
        if problem := _tile_problem(op, tile, tiling.num_warps, workload.dtype):
            return problem
    if not 2 <= tiling.num_stages <= MAX_STAGES:
        return f"{tiling.num_stages} stages: use 2 to {MAX_STAGES}"
    return one_ring_problem(tiling) or _spill_problem(workload, tiling)


def _tile_problem(op: TileOp, tile: Tile, num_warps: int, dtype: Dtype) -> str | None:
    """Why `num_warps` warps cannot compute this tile of an op."""
    if num_warps not in NUM_WARPS:
        return f"{num_warps} warps: use {' or '.join(map(str, NUM_WARPS))}"
    if tile.m < 16 or tile.n < 16 or tile.m % 16 or tile.n % 16:
        return f"tile {tile}: m and n must be positive multiples of 16, one mma.sync fragment"
    if tile.k not in (depths := stage_depths(dtype, converts=bool(op.weights))):
        return f"tile {tile}: k must be one of {', '.join(map(str, depths))}, which the swizzle supports"
    if warp_grid(tile, num_warps, op.rows_per_column) is None:
        widest = f"64 x {64 // op.rows_per_column}" + (f", {op.halves} wide" if op.halves else "")
        return (
            f"tile {tile}: no grid of {num_warps} warps gives warp tiles that are multiples of 16 x 8, up to {widest}"
        )
    return _converted_problem(op, tile, num_warps) if op.weights else None


def _converted_problem(op: TileOp, tile: Tile, num_warps: int) -> str | None:
    """Why the warps cannot convert the weights of this tile."""
    if problem := depth_problem(op, tile.k):
        return problem
    _, warps_n = warp_grid(tile, num_warps, op.rows_per_column) or (1, 1)
    if (rows := tile.n // warps_n * op.rows_per_column) % 16:
        return f"tile {tile}: a warp has {rows} rows of weights, which are converted in pairs of 8: use another n"
    sums = tile.m * tile.n * op.rows_per_column // (32 * num_warps)
    if sums > (most := most_converted(op)):
        return f"tile {tile}: {sums} fp32 sums per thread, beside weights in {op.weights}: use at most {most}"
    return None


def _spill_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the compiler would spill registers."""
    if converts_weights(workload):
        wanted = _wanted_registers(workload, tiling)
        what = f"a thread that converts weights needs about {wanted} registers, and has {MAX_REGISTERS_PER_THREAD}"
        return None if wanted <= MAX_REGISTERS_PER_THREAD else f"{what}: use smaller tiles, or more warps"
    tiles, size, num_threads = product_tiles(workload, tiling), workload.dtype.size_bytes, tiling.num_threads
    num_accumulators = max([tile.m * tile.n for tile in tiles]) // num_threads
    shallow, deeper, *_ = stage_depths(workload.dtype, converts=converts_weights(workload))
    is_shallow = shallow in {tile.k for tile in tiles}
    num_copies = max([(tile.m + tile.n) * tile.k * size for tile in tiles]) // (COPY_BYTES * num_threads)
    if num_accumulators >= _FULL_ACCUMULATORS and num_copies > _MAX_COPIES_BESIDE_FULL_ACCUMULATORS:
        most = _MAX_COPIES_BESIDE_FULL_ACCUMULATORS
        return (
            f"warp tiles of 64 x 64 with {num_copies} copies per thread and stage spill: use at most {most}, or more "
            "warps"
        )
    is_tight = is_shallow or len(tiles) > 2
    if num_accumulators >= _FULL_ACCUMULATORS and is_tight and tiling.num_stages == _RING_THAT_SPILLS:
        of_what = f"of {shallow}" if is_shallow else "of a chain"
        return f"warp tiles of 64 x 64 with {_RING_THAT_SPILLS} stages {of_what} spill: use another number of stages"
    if tiling.split_k and num_accumulators > _MOST_ACCUMULATORS_TO_ADD and is_shallow:
        return (
            f"{num_accumulators} accumulators per thread with stages of {shallow} spill when parts are added up: use "
            f"at most {_MOST_ACCUMULATORS_TO_ADD}, or stages of {deeper}"
        )
    return None
