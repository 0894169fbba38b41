"""THE statement of what is legal. Sampler, verifier, service and tests call it; each refusal is a sentence.

Every rule is a function of one axis and what it depends on, and answers None or the sentence. A second name for the
same plan is refused with the name to use, so two legal schedules never mean the same source and the same plan.
"""

from __future__ import annotations

from functools import lru_cache

from tuner.core.gpu import Gpu
from tuner.core.order import row_blocks, tallest_block
from tuner.core.schedule import (
    Granularity,
    Interleave,
    InterleaveKind,
    Raster,
    RasterKind,
    Schedule,
    Tile,
    Tiling,
    warp_grid,
)
from tuner.core.tiles import TileGraph, tile_graph
from tuner.core.verify import MAX_REGISTERS_PER_THREAD, Resources, occupancy_limits
from tuner.core.workload import Workload
from tuner.errors import IllegalSchedule

#: Depths of a stage: 64, 128 and 256 bytes a row, which the shared-memory swizzle is made for.
STAGE_DEPTHS = (32, 64, 128)
MAX_STAGES = 8
NUM_WARPS = (4, 8)
MAX_CTAS_PER_SM = 2
#: Each band is a block of its own to plan: millions of tile rows take wider ones.
MAX_BANDS = 1024
#: Addresses, loop counters, epilogue and what the compiler adds, by depth of a stage: 19 of 20 kernels of the whole
#: space take no more. Near the limit of a thread the compiler does with less.
_OTHER_REGISTERS = {32: 58, 64: 76, 128: 90}
#: The largest warp tile, 64 x 64, leaves registers for so many 16-byte copies a thread and stage; with more, ptxas
#: spilled in most kernels of the whole space, for sm_80 and sm_90a.
_FULL_ACCUMULATORS = 128
_MAX_COPIES_BESIDE_FULL_ACCUMULATORS = 16

_warp_grid = lru_cache(maxsize=4096)(warp_grid)


def dynamic_smem_bytes(workload: Workload, tiling: Tiling) -> int:
    """Shared memory that the kernel asks for: a ring of stages that hold the larger op's A and W slices, bytes."""
    slice_elements = max((tile.m + tile.n) * tile.k for tile in tiling.tiles)
    return tiling.num_stages * slice_elements * workload.dtype.size_bytes


def estimated_registers(tiling: Tiling) -> int:
    """Registers of a thread: fp32 accumulators, double-buffered fragments, and the rest.

    Source: fragment sizes of mma.sync.m16n8k16, PTX ISA, "Matrix fragments for mma.m16n8k16".
    """
    most = max(_fragment_registers(tile, tiling.num_warps) for tile in tiling.tiles)
    others = max(_OTHER_REGISTERS[tile.k] for tile in tiling.tiles)
    return min(most + others, MAX_REGISTERS_PER_THREAD)


def _fragment_registers(tile: Tile, num_warps: int) -> int:
    """Accumulators and double-buffered operand fragments of a thread."""
    warps_m, warps_n = _warp_grid(tile, num_warps) or (1, 1)
    warp_m, warp_n = tile.m // warps_m, tile.n // warps_n
    return warp_m * warp_n // 32 + 2 * (warp_m // 16 * 4 + warp_n // 8 * 2)


def estimated_resources(workload: Workload, tiling: Tiling) -> Resources:
    """What a CTA will take, before the compiler has spoken."""
    return Resources(
        num_threads=tiling.num_threads,
        smem_bytes=dynamic_smem_bytes(workload, tiling),
        registers_per_thread=estimated_registers(tiling),
    )


def gpu_problem(gpu: Gpu) -> str | None:
    """Why no schedule runs on this GPU."""
    if gpu.compute_capability < (8, 0):
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}: the kernels need 8.0 (cp.async, bf16)"
    return None


def tile_problem(tile: Tile, num_warps: int) -> str | None:
    """Why these warps cannot compute this tile."""
    if num_warps not in NUM_WARPS:
        return f"{num_warps} warps: use {' or '.join(map(str, NUM_WARPS))}"
    if min(tile.m, tile.n) < 16 or tile.m % 16 or tile.n % 16:
        return f"tile {tile}: m and n must be positive multiples of 16, one mma.sync fragment"
    if tile.k not in STAGE_DEPTHS:
        return f"tile {tile}: k must be one of {', '.join(map(str, STAGE_DEPTHS))}, which the swizzle is made for"
    if _warp_grid(tile, num_warps) is None:
        return f"tile {tile}: no grid of {num_warps} warps gives warp tiles of 16 x 8 multiples up to 64 x 64"
    return None


def tiling_problem(workload: Workload, gpu: Gpu, tiling: Tiling) -> str | None:
    """Why the tiling cannot be compiled, or would not fit the GPU."""
    if len(tiling.tiles) != len(workload.ops):
        return f"{len(tiling.tiles)} tiles for {len(workload.ops)} ops: give one tile per op"
    for tile in tiling.tiles:
        if problem := tile_problem(tile, tiling.num_warps):
            return problem
    if not 2 <= tiling.num_stages <= MAX_STAGES:
        return f"{tiling.num_stages} stages: use 2 to {MAX_STAGES}"
    return spill_problem(tiling) or residency_problem(estimated_resources(workload, tiling), gpu, 1)


def spill_problem(tiling: Tiling) -> str | None:
    """Why the compiler would spill registers."""
    num_accumulators = max(tile.m * tile.n for tile in tiling.tiles) // tiling.num_threads
    num_copies = max((tile.m + tile.n) * tile.k for tile in tiling.tiles) // (8 * tiling.num_threads)
    if num_accumulators >= _FULL_ACCUMULATORS and num_copies > _MAX_COPIES_BESIDE_FULL_ACCUMULATORS:
        most = _MAX_COPIES_BESIDE_FULL_ACCUMULATORS
        return (
            f"warp tiles of 64 x 64 and {num_copies} copies a thread and stage spill: use at most {most}, or more warps"
        )
    return None


def residency_problem(resources: Resources, gpu: Gpu, ctas_per_sm: int) -> str | None:
    """Why so many CTAs do not fit one SM."""
    if resources.smem_bytes > gpu.smem_per_cta_bytes:
        return f"the stages take {resources.smem_bytes} bytes; a CTA on {gpu.name} has {gpu.smem_per_cta_bytes}"
    if resources.registers_per_thread > MAX_REGISTERS_PER_THREAD:
        return f"about {resources.registers_per_thread} registers a thread; {MAX_REGISTERS_PER_THREAD} exist"
    what, fewest = min(occupancy_limits(resources, gpu).items(), key=lambda item: item[1])
    if fewest < ctas_per_sm:
        return f"{what} of {gpu.name} allow {fewest} such CTAs per SM, not {ctas_per_sm}"
    return None


def raster_problem(raster: Raster, block_rows: int, tile_cols: int, op_name: str) -> str | None:
    """Why the raster is no walk, or not the plain name of its walk, over blocks of this size."""
    single = raster.kind in (RasterKind.ROW, RasterKind.COLUMN)
    if raster.width < 1 or single != (raster.width == 1):
        return f"raster {raster.kind} of {op_name}: width {raster.width} must be " + ("1" if single else "at least 2")
    if raster.kind is RasterKind.ROW:
        return None
    where = f"raster {raster} of {op_name} on blocks of {block_rows} x {tile_cols} tiles is the"
    if block_rows == 1 or tile_cols == 1 or (raster.kind is RasterKind.PANEL and raster.width >= tile_cols):
        return f"{where} row raster: say row"
    if raster.kind is RasterKind.GROUPED and raster.width >= block_rows:
        return f"{where} column raster: say column"
    return None


@lru_cache(maxsize=65536)
def interleave_problem(workload: Workload, tile_ms: tuple[int, ...], interleave: Interleave) -> str | None:
    """Why the merge is none, or not the plain name of itself, for tiles of these heights."""
    if interleave.kind is InterleaveKind.PRODUCER_FIRST:
        return None if interleave.rows == 0 else f"producer_first has no bands: rows must be 0, not {interleave.rows}"
    if interleave.rows < 1:
        return f"bands of {interleave.rows} rows: use at least 1"
    ops = tuple(range(len(workload.ops)))
    num_rows = -(-workload.ops[0].m // tile_ms[0])
    first = Interleave()
    if interleave.rows >= num_rows or len(ops) == 1:
        return f"{interleave} over {num_rows} tile rows is the same order as {first}: say {first}"
    fewest_rows = -(-num_rows // MAX_BANDS)
    if interleave.rows < fewest_rows:
        return f"{interleave} over {num_rows} tile rows makes over {MAX_BANDS} bands: use at least {fewest_rows} rows"
    blocks = row_blocks(workload, tile_ms, ops, interleave)
    narrower = (Interleave(kind=InterleaveKind.BANDS, rows=rows) for rows in range(fewest_rows, interleave.rows))
    for plain in (first, *narrower):
        if row_blocks(workload, tile_ms, ops, plain) == blocks:
            return f"{interleave} over {num_rows} tile rows is the same order as {plain}: say {plain}"
    return None


def granularity_problem(graph: TileGraph, granularity: Granularity) -> str | None:
    """Why the signals would be the same as one per row."""
    if granularity is Granularity.ROW:
        return None
    if not graph.posting_ops:
        return "no tile waits for another one, so there are no signals: say row"
    if all(graph.grids[op][1] == 1 for op in graph.posting_ops):
        return "each producer tile row is one tile, so a signal per tile is a signal per row: say row"
    return None


def grid_problem(num_tasks: int, resources: Resources, gpu: Gpu, ctas_per_sm: int, reserved_sms: int) -> str | None:
    """Why there is no such grid, or which plainer numbers give it."""
    if not 1 <= ctas_per_sm <= MAX_CTAS_PER_SM:
        return f"{ctas_per_sm} CTAs per SM: use 1 to {MAX_CTAS_PER_SM}"
    if not 0 <= reserved_sms < gpu.num_sms:
        return f"{reserved_sms} reserved SMs of {gpu.num_sms}: use 0 to {gpu.num_sms - 1}"
    size = min(num_tasks, ctas_per_sm * (gpu.num_sms - reserved_sms))
    plain = next(
        (ctas, reserved)
        for ctas in range(1, ctas_per_sm + 1)
        for reserved in (0, max(0, gpu.num_sms - size // ctas), reserved_sms)
        if min(num_tasks, ctas * (gpu.num_sms - reserved)) == size
    )
    if plain != (ctas_per_sm, reserved_sms):
        given = f"{ctas_per_sm} CTAs per SM less {reserved_sms} SMs is a grid of {size} CTAs for {num_tasks} tasks"
        return f"{given}: say {plain[0]} per SM less {plain[1]}"
    return residency_problem(resources, gpu, ctas_per_sm)


def check_schedule(workload: Workload, gpu: Gpu, schedule: Schedule) -> None:
    """Whether the schedule can be compiled, fits the GPU, and is the plain name of its plan.

    Raises:
        IllegalSchedule: the first rule that it breaks, as a sentence.
    """
    problem = gpu_problem(gpu) or tiling_problem(workload, gpu, schedule.tiling) or _ordering_problem(
        workload, gpu, schedule
    )  # fmt: skip
    if problem:
        raise IllegalSchedule(f"{schedule}: {problem}")


def _ordering_problem(workload: Workload, gpu: Gpu, schedule: Schedule) -> str | None:
    ordering, graph = schedule.ordering, tile_graph(workload, schedule.tiling)
    if len(ordering.rasters) != len(workload.ops):
        return f"{len(ordering.rasters)} rasters for {len(workload.ops)} ops: give one raster per op"
    if problem := interleave_problem(workload, graph.tile_ms, ordering.interleave):
        return problem
    blocks = row_blocks(workload, graph.tile_ms, graph.op_indices, ordering.interleave)
    for op, raster in enumerate(ordering.rasters):
        height, name = tallest_block(blocks, op), workload.ops[op].name
        if problem := raster_problem(raster, height, graph.grids[op][1], name):
            return problem
    return granularity_problem(graph, ordering.granularity) or grid_problem(
        graph.num_tasks,
        estimated_resources(workload, schedule.tiling),
        gpu,
        ordering.ctas_per_sm,
        ordering.reserved_sms,
    )
