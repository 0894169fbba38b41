"""Calculates first candidates with tiles in parts for medium numbers of rows: each part adds up a share of its
tile.

From about 64 to 1,000 rows, large tiles read their operands least often, but there are too few of them for all SMs. So
they are divided into as many parts as fill the SMs; or whole waves stay whole, and each op's last wave is in parts. A
step of 16 elements of k takes the clocks of the tensor cores or those of the shared memory, which the copy engine
writes and the products read, whichever is more. Source: the instruction's shapes, 128 bytes per clock, and measurements
of scattered sums (docs/findings/scattered-sums.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product

from tuner.core.legal.scattered_sums import MOST_PARTS
from tuner.core.legal.sum_room import with_least_room
from tuner.core.legal.wgmma import BLOCK_ROWS, COLUMNS, MAX_ACCUMULATORS_BUSY, MAX_PRODUCT_COLUMNS, most_accumulators
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, RasterKind, SplitTiles
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, PartSums, Tile, Tiling

#: Numbers of rows with guesses: with fewer, only weights matter; with more, whole tiles fill the SMs.
ROWS = range(65, 1025)
#: Bytes of shared memory per clock, and of an operand's row in a step of 16 elements of k.
SMEM_BYTES, ROW_BYTES = 128, 32
#: Clocks of a task besides its steps, and of combining parts; bytes per clock that an SM stores or loads meanwhile.
TASK_CLOCKS, MEETING_CLOCKS, SUM_BYTES_A_CLOCK = 3_500, 3_500, 48
SUM_BYTES = 4
#: Space for stages of operands, and their maximum number.
RING_BYTES, MOST_STAGES = 220_000, 8
STEP = 64
#: Number of guesses of either kind.
NUM_SPLIT, NUM_TAILS = 3, 2
#: Choices per op that are combined with those of the other ops.
NUM_CHOICES = 10

Clocks = Callable[[TileOp, "Choice", int], float]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One op's tiles: which operand is A, how many warpgroups share a tile, and its parts."""

    tile: Tile
    swap_ab: bool
    groups: int
    parts: int = 1


def step_clocks(op: TileOp, choice: Choice) -> float:
    """Clocks of a step of 64 elements of k."""
    return _step_clocks(choice.tile.n * op.rows_per_column, choice.tile.m, choice.swap_ab, choice.groups)


@lru_cache(maxsize=4096)  # the same for any number of parts
def _step_clocks(weight_rows: int, rows: int, swap_ab: bool, groups: int) -> float:
    a_rows, b_rows = (weight_rows, rows) if swap_ab else (rows, weight_rows)
    blocks = -(-a_rows // (BLOCK_ROWS * groups)) * groups
    tensor = blocks * b_rows / 2
    smem = ROW_BYTES * (blocks * (BLOCK_ROWS + b_rows) + a_rows + b_rows) / SMEM_BYTES
    return 4 * max(tensor, smem)


def task_clocks(op: TileOp, choice: Choice, parts: int) -> float:
    """Clocks of a tile, or of one of its parts, which stores the sums of the shares that other parts finish, and loads
    their sums of its own share."""
    steps = -(-op.k // (STEP * parts))
    clocks = steps * step_clocks(op, choice) + TASK_CLOCKS
    if parts == 1:
        return clocks
    sums = choice.tile.m * choice.tile.n * op.rows_per_column * (parts - 1) / parts
    return clocks + MEETING_CLOCKS + 2 * SUM_BYTES * sums / SUM_BYTES_A_CLOCK


def _num_tiles(op: TileOp, choice: Choice) -> int:
    return -(-op.m // choice.tile.m) * -(-op.n // choice.tile.n)


def split_clocks(op: TileOp, choice: Choice, num_sms: int) -> float:
    """Clocks of an op with all tiles in parts."""
    return -(-_num_tiles(op, choice) * choice.parts // num_sms) * task_clocks(op, choice, choice.parts)


def tails_clocks(op: TileOp, choice: Choice, num_sms: int) -> float:
    """Clocks of an op whose full waves are whole tiles, and whose last wave is in parts."""
    waves, tail = divmod(_num_tiles(op, choice), num_sms)
    last = -(-tail * choice.parts // num_sms) * task_clocks(op, choice, choice.parts)
    return waves * task_clocks(op, choice, 1) + last


def heights(rows: int) -> list[int]:
    """Tile heights: all rows in 1 to 6 tiles, in steps of 8."""
    return sorted({COLUMNS * -(-rows // (count * COLUMNS)) for count in range(1, 7)})


def choices_of(op: TileOp, height: int, swap_ab: bool, groups: int) -> Iterator[Choice]:
    """The choices whose sums fit in the registers."""
    most = min(MAX_ACCUMULATORS_BUSY, most_accumulators(op, groups, swap_ab=swap_ab, shares_k=False, is_busy=True))
    for n in range(2 * COLUMNS, MAX_PRODUCT_COLUMNS + 1, COLUMNS):
        weight_rows = n * op.rows_per_column
        if weight_rows > MAX_PRODUCT_COLUMNS or (swap_ab and weight_rows % (2 * COLUMNS)):
            continue
        a_rows, b_rows = (weight_rows, height) if swap_ab else (height, weight_rows)
        if b_rows <= MAX_PRODUCT_COLUMNS and -(-a_rows // (BLOCK_ROWS * groups)) * b_rows / 2 <= most:
            for parts in range(1, MOST_PARTS + 1):
                yield Choice(tile=Tile(m=height, n=n, k=STEP), swap_ab=swap_ab, groups=groups, parts=parts)


def schedule_of(workload: Workload, choices: tuple[Choice, ...], split_tiles: SplitTiles) -> Schedule:
    """The schedule with as many stages as fit; neighbours share weights if a tile does not have all rows."""
    first, ops = choices[0], list(zip(workload.tile_ops, choices, strict=True))
    stage_bytes = max((choice.tile.m + choice.tile.n * op.rows_per_column) * STEP * 2 for op, choice in ops)
    stages = min(MOST_STAGES, RING_BYTES // stage_bytes)
    raster = RasterKind.ROW if first.tile.m >= workload.tile_ops[0].m else RasterKind.COLUMN
    tiling = Tiling(
        engine=Engine.WGMMA,
        tiles=tuple(choice.tile for choice in choices),
        num_stages=stages,
        input_stages=stages,
        num_warps=4 * first.groups,
        swap_ab=first.swap_ab,
        split_k=tuple(choice.parts for choice in choices),
        part_sums=PartSums.SCATTERED,
    )
    ordering = Ordering(
        rasters=(Raster(kind=raster),) * len(choices), assignment=Assignment.STATIC, split_tiles=split_tiles
    )
    return Schedule.of(tiling=tiling, ordering=ordering)


def scattered(schedule: Schedule) -> Schedule:
    """The same schedule, but each part of a tile adds up a share of it: from queues, tile after tile."""
    ordering = replace(schedule.ordering, assignment=Assignment.STATIC, part_major=False)
    return schedule.but(tiling=replace(schedule.tiling, part_sums=PartSums.SCATTERED), ordering=ordering)


def settled_sums(workload: Workload, tiling: Tiling) -> Tiling:
    """The same tiling with the least room for sums that it needs; if there are no parts, without scattered sums."""
    return with_least_room(workload, tiling if tiling.split_k else replace(tiling, part_sums=PartSums.LAST))


def _clocks_of(clocks: Clocks, op: TileOp, num_sms: int, choice: Choice) -> float:
    return clocks(op, choice, num_sms)


def _ranked(workload: Workload, gpu: Gpu, clocks: Clocks, split_tiles: SplitTiles) -> Iterator[Schedule]:
    """Schedules, the fastest first; one for each height and order of operands."""
    found: list[tuple[float, int, Schedule]] = []
    ops = workload.tile_ops
    for height, swap_ab, groups in product(heights(ops[0].m), (False, True), (1, 2, 3)):
        per_op = [
            sorted(choices_of(op, height, swap_ab, groups), key=partial(_clocks_of, clocks, op, gpu.num_sms))
            for op in ops
        ]
        own = [
            (sum(clocks(op, choice, gpu.num_sms) for op, choice in zip(ops, choices, strict=True)), number, choices)
            for number, choices in enumerate(product(*(choices[:NUM_CHOICES] for choices in per_op)))
            if max(choice.parts for choice in choices) > 1
        ]
        found += [
            (time, len(found), schedule_of(workload, choices, split_tiles)) for time, _, choices in sorted(own)[:4]
        ]
    yield from (schedule for _, _, schedule in sorted(found, key=lambda one: one[:2]))


def part_guesses(workload: Workload, gpu: Gpu, is_legal: Callable[[Schedule], bool]) -> list[Schedule]:
    """The best legal guesses of either kind: with all tiles of an op in parts, or only those of its last wave."""
    if workload.is_independent or max(op.m for op in workload.tile_ops) not in ROWS:
        return []
    if not all(op.IS_PRODUCT for op in workload.tile_ops) or len(workload.tile_ops) > 2:
        return []
    found: list[Schedule] = []
    for clocks, split_tiles, count in (
        (split_clocks, SplitTiles.ALL, NUM_SPLIT),
        (tails_clocks, SplitTiles.TAILS, NUM_TAILS),
    ):
        of_tiles: dict[tuple[object, ...], Schedule] = {}
        for schedule in _ranked(workload, gpu, clocks, split_tiles):
            key = schedule.tiling.tiles[0].m, schedule.tiling.swap_ab, schedule.tiling.num_warps
            if len(of_tiles) < count and key not in of_tiles and is_legal(schedule):
                of_tiles[key] = schedule
        found += of_tiles.values()
    return found
