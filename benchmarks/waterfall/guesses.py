"""First guesses for middle rows by arithmetic: whole waves of tiles, the ceiling of shared memory, and what is merged.

A step of 16 of k costs an SM the larger one of three: clocks of the tensor cores, of its shared memory, which the copy
engine writes and the products read, and of its share of what the L2 delivers. CTAs side by side that read the same
weights at the same time are delivered them once. Source of the first two: the instruction's shapes and 128 bytes a
clock; of the third: benchmarks/results/h200/waterfall.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

from tuner.core.legal.legality import check_schedule
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, RasterKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.errors import IllegalSchedule

#: Bytes of shared memory a clock; of an SM's share of the L2, while all SMs ask.
SMEM_BYTES, L2_BYTES = 128, 34
#: Of an operand's row in a step of 16 elements of k.
ROW_BYTES = 32
#: Clocks of a task beside its steps, and more of one that is a part of a tile: sums of other parts are read and added.
TASK_CLOCKS, PART_CLOCKS = 3_500, 5_000
#: SM clock while the tensor cores are busy, and what is read from memory, MHz and bytes a microsecond.
CLOCK_MHZ, DRAM_BYTES_PER_US = 1_600, 4.4e6
#: Between two launches and between two ops, microseconds.
LAUNCH_US = 4.0
#: CTAs placed together -> SMs of so many that hold them: a GPC of an H200 has 16 or 18.
SEATS = {2: 132, 3: 126, 4: 128}
#: Stages of operands have so much room.
RING_BYTES = 220_000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One op's tiles: which operand is A, and how many warpgroups share a tile."""

    tile: Tile
    swap_ab: bool
    warpgroups: int
    parts: int = 1


def step_clocks(op: TileOp, shape: Shape) -> tuple[float, float, float]:
    """Of 16 elements of k: the tensor cores, shared memory, and the L2."""
    weight_rows = shape.tile.n * op.rows_per_column
    a_rows, b_rows = (weight_rows, shape.tile.m) if shape.swap_ab else (shape.tile.m, weight_rows)
    blocks = -(-a_rows // (64 * shape.warpgroups)) * shape.warpgroups
    row_tiles = -(-op.m // shape.tile.m)
    tensor = blocks * b_rows / 2
    smem = ROW_BYTES * (blocks * (64 + b_rows) + a_rows + b_rows) / SMEM_BYTES
    return tensor, smem, ROW_BYTES * (weight_rows / row_tiles + shape.tile.m) / L2_BYTES


def op_clocks(op: TileOp, shape: Shape, num_sms: int) -> float:
    """Of all tasks of an op: the waves that its tasks make."""
    tiles = -(-op.m // shape.tile.m) * -(-op.n // shape.tile.n)
    steps = -(-op.k // 64) * 4 / shape.parts
    task = steps * max(step_clocks(op, shape)) + TASK_CLOCKS + PART_CLOCKS * (shape.parts > 1)
    return -(-tiles * shape.parts // num_sms) * task


def forecast_us(workload: Workload, shapes: tuple[Shape, ...], num_sms: int) -> float:
    """Of the pair."""
    clocks = sum(op_clocks(op, shape, num_sms) for op, shape in zip(workload.tile_ops, shapes, strict=True))
    return LAUNCH_US + max(clocks / CLOCK_MHZ, workload.weight_bytes / DRAM_BYTES_PER_US)


def heights(m: int) -> list[int]:
    """Of a tile: all rows in 1 to 6 tiles, in steps of 8."""
    return sorted({8 * ceil(ceil(m / count) / 8) for count in range(1, 7)})


def shapes_of(op: TileOp, height: int, swap_ab: bool, warpgroups: int) -> Iterator[Shape]:
    """Those whose sums fit the registers."""
    for n in range(16, 257, 8):
        weight_rows = n * op.rows_per_column
        if weight_rows > 256 or (swap_ab and weight_rows % 16):
            continue
        a_rows, b_rows = (weight_rows, height) if swap_ab else (height, weight_rows)
        blocks = -(-a_rows // (64 * warpgroups))
        most_sums = {1: 128, 2: 128, 3: 96}[warpgroups]
        if b_rows <= 256 and blocks * b_rows / 2 <= most_sums:
            for parts in (1, 2, 3, 4):
                yield Shape(tile=Tile(m=height, n=n, k=64), swap_ab=swap_ab, warpgroups=warpgroups, parts=parts)


def fastest(op: TileOp, height: int, swap_ab: bool, warpgroups: int, num_sms: int) -> list[Shape]:
    """A dozen of one op."""
    return sorted(shapes_of(op, height, swap_ab, warpgroups), key=lambda shape: op_clocks(op, shape, num_sms))[:12]


def schedule_of(workload: Workload, shapes: tuple[Shape, ...], reserved_sms: int = 0) -> Schedule:
    """With as many stages as there is room for."""
    first = shapes[0]
    ops = zip(workload.tile_ops, shapes, strict=True)
    stage_bytes = max((shape.tile.m + shape.tile.n * op.rows_per_column) * 128 for op, shape in ops)
    stages = min(8, RING_BYTES // stage_bytes)
    raster = RasterKind.ROW if first.tile.m >= workload.tile_ops[0].m else RasterKind.COLUMN
    parts = tuple(shape.parts for shape in shapes)
    tiling = Tiling(
        engine=Engine.WGMMA,
        tiles=tuple(shape.tile for shape in shapes),
        num_stages=stages,
        input_stages=stages,
        num_warps=4 * first.warpgroups,
        swap_ab=first.swap_ab,
        split_k=parts if max(parts) > 1 else (),
    )
    ordering = Ordering(
        rasters=(Raster(kind=raster),) * len(shapes),
        assignment=Assignment.STATIC,
        reserved_sms=reserved_sms,
        part_major=max(parts) > 1 and raster is RasterKind.COLUMN,
    )
    return Schedule.of(tiling=tiling, ordering=ordering)


def guesses(workload: Workload, gpu: Gpu, count: int, *, row_tiles: int = 0) -> list[tuple[float, Schedule]]:
    """The best by the forecast, microseconds beside each; of each height and kind of operand at most three.

    With `row_tiles` those of so many tiles of rows alone, on as many SMs as hold that many neighbours together.
    """
    found, num_sms = [], SEATS.get(row_tiles, gpu.num_sms)
    for height, swap_ab, warpgroups in product(heights(workload.tile_ops[0].m), (False, True), (1, 2, 3)):
        if row_tiles and ceil(workload.tile_ops[0].m / height) != row_tiles:
            continue
        per_op = [fastest(op, height, swap_ab, warpgroups, num_sms) for op in workload.tile_ops]
        ranked = sorted(
            (forecast_us(workload, shapes, num_sms), i, shapes) for i, shapes in enumerate(product(*per_op))
        )
        legal = 0
        for us, _, shapes in ranked:
            schedule = schedule_of(workload, shapes, gpu.num_sms - num_sms)
            try:
                check_schedule(workload, gpu, schedule)
            except IllegalSchedule:
                continue
            found.append((us, schedule))
            legal += 1
            if legal == 3:
                break
    return sorted(found, key=lambda one: one[0])[:count]
