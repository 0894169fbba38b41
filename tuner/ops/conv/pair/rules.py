"""When a schedule of a pair of convolutions is legal."""

from __future__ import annotations

from tuner.core.problem.gpu import Gpu, smem_per_cta_bytes
from tuner.core.problem.resources import MAX_REGISTERS_PER_THREAD, Resources
from tuner.core.problem.workload import Workload
from tuner.core.schedule.axis import values_problem
from tuner.ops.conv.pair.geometry import BLOCK, MOST_COLUMNS, geometry_of
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.schedule import SIDES, ConvPairSchedule

#: The only compute capability whose instructions the kernel has, and the shared memory that must hold all filters.
CAPABILITY = (9, 0)
MOST_FILTER_BYTES = smem_per_cta_bytes(CAPABILITY)
#: Maximum number of tiles: the proof compares all pairs of them.
MOST_TILES = 1024


def refuse(workload: Workload, gpu: Gpu, op: ConvPairOp, schedule: ConvPairSchedule) -> str | None:
    """Why a schedule cannot be compiled, does not fit the GPU, or is not the simplest name of its plan."""
    return values_problem(schedule) or _op_problem(gpu, op) or _tile_problem(gpu, op, schedule)


def resources_of(op: ConvPairOp, schedule: ConvPairSchedule) -> Resources:
    """Resources of a CTA. The compiler may use all registers that a thread can have, since an SM holds one CTA."""
    return Resources(
        num_threads=128 * schedule.warpgroups,
        smem_bytes=geometry_of(op, schedule).smem_bytes,
        registers_per_thread=MAX_REGISTERS_PER_THREAD,
    )


def _op_problem(gpu: Gpu, op: ConvPairOp) -> str | None:
    """Why no schedule of the op runs on the GPU."""
    if gpu.compute_capability != CAPABILITY:
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}: pairs in one CTA need 9.0, use two convolutions"
    if op.channels % 16:
        return f"{op.channels} channels: pairs in one CTA need a multiple of 16, use two convolutions"
    for name in ("between", "filters"):
        if (value := getattr(op, name)) % BLOCK:
            return f"{name} is {value}: pairs in one CTA need a multiple of {BLOCK}, use two convolutions"
    return None


def _tile_problem(gpu: Gpu, op: ConvPairOp, schedule: ConvPairSchedule) -> str | None:
    if schedule.together and schedule.warpgroups == 1:
        return "a single warpgroup shares its tiles with no other: use together false"
    for name, size in (("rows", op.second.out_height), ("columns", op.second.out_width)):
        smaller = [one for one in SIDES if one < getattr(schedule, name)]
        if smaller and smaller[-1] >= size:
            return f"tiles of {getattr(schedule, name)} {name}, and an image has {size}: use {smaller[-1]}"
    geometry = geometry_of(op, schedule)
    if (widest := max(geometry.patch.share, geometry.middle.share)) > MOST_COLUMNS:
        return f"a tile with its halo has {widest} columns of a product: use a smaller one, for at most {MOST_COLUMNS}"
    if geometry.smem_bytes > gpu.smem_per_cta_bytes:
        has = f"a CTA has {gpu.smem_per_cta_bytes} on {gpu.name}"
        return f"filters and tiles take {geometry.smem_bytes} bytes of shared memory, and {has}: use smaller tiles"
    num_tiles = op.images * geometry.tile_rows * geometry.tile_columns
    if num_tiles > MOST_TILES:
        return f"{num_tiles} tiles: use larger ones, for at most {MOST_TILES}"
    return None
