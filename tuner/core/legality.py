"""THE statement of what is legal. Sampler, verifier, service and tests call it; each refusal is a sentence.

Every rule is a function of one axis and what it depends on, and answers None or the sentence. A second name for the
same plan is refused with the name to use, so two legal schedules never mean the same source and the same plan.
"""

from __future__ import annotations

from functools import lru_cache

from tuner.core.axes import deal_problem, interleave_problem, raster_problem, sync_problem
from tuner.core.gpu import Gpu
from tuner.core.merge import block_shapes, merge_blocks
from tuner.core.order import grid_size
from tuner.core.outcome import PlanKind
from tuner.core.schedule import Schedule, Tile, Tiling, warp_grid
from tuner.core.tiles import product_tile, tile_graph
from tuner.core.verify import MAX_REGISTERS_PER_THREAD, Resources, occupancy_limits
from tuner.core.workload import GemmOp, Workload
from tuner.errors import IllegalSchedule

#: Depths of a stage: 64, 128 and 256 bytes a row, which the shared-memory swizzle is made for.
STAGE_DEPTHS = (32, 64, 128)
MAX_STAGES = 8
NUM_WARPS = (4, 8)
MAX_CTAS_PER_SM = 2
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
    slice_elements = max((tile.m + tile.n) * tile.k for tile in product_tiles(workload, tiling))
    return tiling.num_stages * slice_elements * workload.dtype.size_bytes


def product_tiles(workload: Workload, tiling: Tiling) -> tuple[Tile, ...]:
    """The product that a task of each op computes."""
    return tuple(product_tile(op, tile) for op, tile in zip(workload.ops, tiling.tiles, strict=True))


def estimated_registers(workload: Workload, tiling: Tiling) -> int:
    """Registers of a thread: fp32 accumulators, double-buffered fragments, and the rest.

    Source: fragment sizes of mma.sync.m16n8k16, PTX ISA, "Matrix fragments for mma.m16n8k16".
    """
    most = max(
        _fragment_registers(op, tile, tiling.num_warps) for op, tile in zip(workload.ops, tiling.tiles, strict=True)
    )
    others = max(_OTHER_REGISTERS[tile.k] for tile in tiling.tiles)
    return min(most + others, MAX_REGISTERS_PER_THREAD)


def _fragment_registers(op: GemmOp, tile: Tile, num_warps: int) -> int:
    """Accumulators and double-buffered operand fragments of a thread."""
    warps_m, warps_n = _warp_grid(tile, num_warps, op.rows_per_column) or (1, 1)
    warp_m, warp_n = tile.m // warps_m, tile.n // warps_n * op.rows_per_column
    return warp_m * warp_n // 32 + 2 * (warp_m // 16 * 4 + warp_n // 8 * 2)


def estimated_resources(workload: Workload, tiling: Tiling) -> Resources:
    """What a CTA will take, before the compiler has spoken."""
    return Resources(
        num_threads=tiling.num_threads,
        smem_bytes=dynamic_smem_bytes(workload, tiling),
        registers_per_thread=estimated_registers(workload, tiling),
    )


def gpu_problem(gpu: Gpu) -> str | None:
    """Why no schedule runs on this GPU."""
    if gpu.compute_capability < (8, 0):
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}: the kernels need 8.0 (cp.async, bf16)"
    return None


def tile_problem(op: GemmOp, tile: Tile, num_warps: int) -> str | None:
    """Why these warps cannot compute this tile of an op."""
    if num_warps not in NUM_WARPS:
        return f"{num_warps} warps: use {' or '.join(map(str, NUM_WARPS))}"
    if min(tile.m, tile.n) < 16 or tile.m % 16 or tile.n % 16:
        return f"tile {tile}: m and n must be positive multiples of 16, one mma.sync fragment"
    if tile.k not in STAGE_DEPTHS:
        return f"tile {tile}: k must be one of {', '.join(map(str, STAGE_DEPTHS))}, which the swizzle is made for"
    if _warp_grid(tile, num_warps, op.rows_per_column) is None:
        widest = f"64 x {64 // op.rows_per_column}" + (", a gate and an up projection wide" if op.gated else "")
        return f"tile {tile}: no grid of {num_warps} warps gives warp tiles of 16 x 8 multiples up to {widest}"
    return None


def tiling_problem(workload: Workload, gpu: Gpu, tiling: Tiling) -> str | None:
    """Why the tiling cannot be compiled, or would not fit the GPU."""
    if len(tiling.tiles) != len(workload.ops):
        return f"{len(tiling.tiles)} tiles for {len(workload.ops)} ops: give one tile per op"
    for op, tile in zip(workload.ops, tiling.tiles, strict=True):
        if problem := tile_problem(op, tile, tiling.num_warps):
            return problem
    if not 2 <= tiling.num_stages <= MAX_STAGES:
        return f"{tiling.num_stages} stages: use 2 to {MAX_STAGES}"
    return spill_problem(workload, tiling) or residency_problem(estimated_resources(workload, tiling), gpu, 1)


def spill_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the compiler would spill registers."""
    tiles = product_tiles(workload, tiling)
    num_accumulators = max(tile.m * tile.n for tile in tiles) // tiling.num_threads
    num_copies = max((tile.m + tile.n) * tile.k for tile in tiles) // (8 * tiling.num_threads)
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
    what, fewest = min(occupancy_limits(resources, gpu).items(), key=lambda item: item[1])
    if fewest < ctas_per_sm:
        return f"{what} of {gpu.name} allow {fewest} such CTAs per SM, not {ctas_per_sm}"
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


def kind_problem(workload: Workload, gpu: Gpu, kind: PlanKind) -> str | None:
    """Why the workload cannot be launched this way on the GPU."""
    if kind.is_programmatic and gpu.compute_capability < (9, 0):
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}: programmatic dependent launch needs 9.0"
    if kind is PlanKind.TWO_STREAMS and len(workload.ops) != 2:
        return f"{len(workload.ops)} ops: two streams are for a pair"
    return None


def check_kind(workload: Workload, gpu: Gpu, kind: PlanKind, schedule: Schedule) -> None:
    """Whether the workload can be launched this way on the GPU, with this schedule.

    Raises:
        IllegalSchedule: it cannot, as a sentence.
    """
    problem = kind_problem(workload, gpu, kind)
    if kind is PlanKind.TWO_STREAMS and not schedule.ordering.assignment.is_static:
        problem = "tickets drawn do not tell how many CTAs have started: say static"
    if problem:
        raise IllegalSchedule(f"{kind}: {problem}")


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
    ordering, tiles, graph = schedule.ordering, schedule.tiling.tiles, tile_graph(workload, schedule.tiling)
    if len(ordering.rasters) != len(workload.ops):
        return f"{len(ordering.rasters)} rasters for {len(workload.ops)} ops: give one raster per op"
    if problem := interleave_problem(workload, tiles, ordering.interleave):
        return problem
    blocks = merge_blocks(workload, tiles, graph.op_indices, ordering.interleave)
    for op, raster in enumerate(ordering.rasters):
        if problem := raster_problem(raster, block_shapes(blocks, op), workload.ops[op].name):
            return problem
    resources = estimated_resources(workload, schedule.tiling)
    return (
        sync_problem(graph, ordering.interleave, ordering.granularity, ordering.sync_width)
        or grid_problem(graph.num_tasks, resources, gpu, ordering.ctas_per_sm, ordering.reserved_sms)
        or deal_problem(
            graph,
            ordering.interleave,
            ordering.assignment,
            ordering.partition,
            grid_size(graph.num_tasks, ordering, gpu),
        )
    )
