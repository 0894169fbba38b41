"""Divisions of an op into tasks of the wgmma engine that fill the SMs, and which of them go together.

One CTA runs per SM, so an op takes as long as its busiest SM. Tile shapes are chosen so that whole waves of SMs are
filled, with parts of tiles if whole ones do not fill one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil

import numpy as np

from tuner.core.legal.converted import depth_problem, most_converted
from tuner.core.legal.warpgroups.parts import columns_at_once
from tuner.core.legal.wgmma import (
    COLUMNS,
    MAX_ACCUMULATORS_BUSY,
    MAX_PRODUCT_COLUMNS,
    MAX_SHARED_ROWS,
    most_accumulators,
    multiplied,
    num_accumulators,
    stage_depths,
    tile_problem,
)
from tuner.core.model.task_costs import L2_BYTES_PER_CLOCK, exchange_us, tensor_share
from tuner.core.model.thread_costs import converting_us
from tuner.core.plan.graph.products import weight_stage_bytes
from tuner.core.plan.order.split_k import SUM_BYTES, num_steps, num_tiles, waves
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.tiling import Tile, Tiling, Warpgroups
from tuner.core.space.heights import FEW_COLUMNS, FEW_ROWS, Height, swapped_heights

#: Room for sums where CTAs split K, KiB: rings decide later whether there is more.
SUM_KIB: int = axes_of(Tiling)["sum_kib"].default
#: Minimum columns of a tile.
NARROWEST = 16
PARTS = (1, 2, 3, 4, 6, 8)
MIN_STEPS_PER_PART = 4
#: Range of a stage's weights, bytes: smaller stages cost barriers, larger ones leave too few stages.
STAGE_BYTES = (12_288, 33_792)
#: Minimum rate of a proposed shape, relative to the best one; at least `MIN_SHAPES` are proposed.
MIN_RATE = 0.85
MIN_SHAPES = 6
#: Maximum combined shapes of all ops, so that a job has a few thousand tilings; fewer if CTAs split K.
MAX_COMBINATIONS = 196
MAX_SHARING_COMBINATIONS = 36
#: Approximate number of combinations of independent ops' tile shapes that are timed.
MAX_TIMED = 65_536
#: Time per task, and more for a part: words, barriers, epilogue; arrival. If another op reads the tile, it also waits
#: for the last part's sum.
TASK_US = 0.3
PART_US, READ_PART_US = 0.5, 3.0
#: Stages of about this size are tried first.
GOOD_STAGE_BYTES = 24_576
#: One in `TAIL_SHARE` of an op's tile shapes has a split tail, if there are such shapes.
TAIL_SHARE = 3
#: Minimum rate of tiles with a height of their own for each op, relative to the best ones of one height.
MIN_GAIN_OF_OWN_HEIGHTS = 1.02


@dataclass(frozen=True, kw_only=True)
class TileShape:
    """A tile of an op and its number of parts, which determine the op's tasks."""

    tile: Tile
    #: Parts of a tile.
    parts: int
    #: Whether only the tail is split: the tiles are more than one wave.
    has_tail: bool
    #: The op's roofline time divided by the time of the busiest SM.
    rate: float
    #: Number of tiles, or of their parts.
    num_tasks: int
    #: Time of one task, while all SMs are equally busy.
    task_us: float
    #: fp32 sums per thread.
    num_sums: int

    @property
    def reuse(self) -> float:
        """Products per element that a tile reads."""
        return self.tile.m * self.tile.n / (self.tile.m + self.tile.n)


class WgmmaTileShapes:
    """The tile shapes of a workload's ops on a GPU."""

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        self._workload = workload
        self._gpu = gpu
        self._rows = max(op.m for op in workload.tile_ops)

    def combined(self, height: Height) -> list[tuple[TileShape, ...]]:
        """Combinations of a tile shape per op, the fastest first."""
        return self._side_by_side(height) if self._workload.is_independent else self._one_by_one(height)

    def of_own_heights(self, heights: Iterable[Height]) -> dict[Height, tuple[TileShape, ...]]:
        """For more than few rows: whole tiles, as high for each op as suits it, by the height of the first op; empty if
        tiles of one of `heights` are about as fast. One op may fill a wave with three tile rows, the next with two."""
        ops, alone = self._workload.tile_ops, [one for one in heights if one.cluster_size == 1]
        if self._rows <= FEW_ROWS or len(ops) < 2 or self._workload.is_independent:
            return {}

        def relative_time(shapes: Iterable[TileShape | None]) -> float:
            timed = zip(ops, shapes, strict=True)
            return sum(op.num_flops / shape.rate if shape else math.inf for op, shape in timed)

        same, ways = math.inf, dict[Height, list[list[TileShape]]]()
        for height in dict.fromkeys((*alone, *swapped_heights(self._rows))):
            of_ops = [[one for one in self.all_shapes(op, height) if not one.has_tail] for op in ops]
            if height in alone:
                same = min(same, relative_time(next(iter(shapes), None) for shapes in of_ops))
            fastest = ways.setdefault(replace(height, m=0), [[] for _ in ops])
            for own, shapes in zip(fastest, of_ops, strict=True):
                own += [one for one in shapes if one.parts == 1]
        mixed = [
            (way, tuple(max(own, key=_fast_and_small) for own in of_ops)) for way, of_ops in ways.items() if all(of_ops)
        ]
        return {
            replace(way, m=shapes[0].tile.m): shapes
            for way, shapes in sorted(mixed, key=lambda one: relative_time(one[1]))
            if len({shape.tile.m for shape in shapes}) > 1 and relative_time(shapes) * MIN_GAIN_OF_OWN_HEIGHTS < same
        }

    def in_two_waves(self, height: Height) -> tuple[TileShape, ...]:
        """A wide tile shape for each op with two tasks per SM; empty if some op has none that is fast."""
        lanes = self._gpu.num_clusters(height.cluster_size)
        chosen: list[TileShape] = []
        for op in self._workload.tile_ops:
            shapes = [c for c in self.all_shapes(op, height) if lanes < num_tiles(op, c.tile) * c.parts <= 2 * lanes]
            wide = [shape for shape in shapes if shape.tile.n * op.rows_per_column >= FEW_COLUMNS]
            fast = [shape for shape in wide if shape.rate >= MIN_RATE * shapes[0].rate]
            if not fast:
                return ()
            is_read = bool(self._workload.consumers_of(len(chosen)))
            chosen.append(max(fast, key=lambda shape: self._by_depth(op, shape, is_read=is_read)))
        return tuple(chosen)

    def _by_depth(self, op: TileOp, shape: TileShape, *, is_read: bool) -> tuple[float, ...]:
        """A sort key, largest for deep stages after more important criteria: whole tiles for ops whose output is read,
        wide ones for the rest."""
        first = shape.parts == 1 if is_read else shape.tile.n >= FEW_ROWS
        return first, round(shape.rate, 1), weight_stage_bytes(op, shape.tile, self._workload.dtype), shape.rate

    def _one_by_one(self, height: Height) -> list[tuple[TileShape, ...]]:
        """Shapes for ops that follow each other, chosen as if each op had all SMs. For more than two ops, combinations
        that give every SM the same total work come first, since weights of the next op are loaded ahead."""
        num_ops, lanes = len(self._workload.tile_ops), self._gpu.num_clusters(height.cluster_size)
        most = max(2, int(_most_combinations(height) ** (1 / num_ops) + 1e-9))
        combined = filter(
            _leave_registers, product(*(self._best_shapes(op, height, most) for op in self._workload.tile_ops))
        )
        return sorted(combined, key=by_rate if num_ops <= 2 else partial(balanced_us, lanes=lanes))

    def _side_by_side(self, height: Height) -> list[tuple[TileShape, ...]]:
        """Shapes for ops that share the SMs: the tasks of all ops together should fill whole waves."""
        lanes = self._gpu.num_clusters(height.cluster_size)
        timed = [
            (_makespan_us(shapes, lanes), shapes)
            for shapes in self._batched(height)
            if not any(shape.has_tail for shape in shapes) and _leave_registers(shapes)
        ]
        timed.sort(key=lambda one: one[0])
        return [shapes for time_us, shapes in timed if time_us <= timed[0][0] / MIN_RATE][: _most_combinations(height)]

    def _batched(self, height: Height) -> Iterator[tuple[TileShape, ...]]:
        """A tile shape for each op, in all combinations; of more than two ops, those of equal shape share one."""
        ops = self._workload.tile_ops
        keys = [(op.m, op.weight_rows, op.k) if len(ops) > 2 else index for index, op in enumerate(ops)]
        batches = dict(zip(keys, ops, strict=True))
        most = int(MAX_TIMED ** (1 / len(batches)))
        for choice in product(*(self.all_shapes(op, height)[:most] for op in batches.values())):
            chosen = dict(zip(batches, choice, strict=True))
            yield tuple(chosen[key] for key in keys)

    def _best_shapes(self, op: TileOp, height: Height, most: int) -> list[TileShape]:
        """At most `most` shapes that fill the SMs, the best first; if few do, the best ones. Some have split tails."""
        every = self.all_shapes(op, height)
        shapes = [shape for shape in every if not shape.has_tail]
        tails = [shape for shape in every if shape.has_tail][: most // TAIL_SHARE]
        filled = [shape for shape in shapes if shape.rate >= MIN_RATE * shapes[0].rate]
        best = (filled if len(filled) >= MIN_SHAPES else shapes[:MIN_SHAPES])[: most - len(tails)]
        return [shape for shape in every if shape in best or shape in tails]

    def _own_shapes(self, op: TileOp, height: Height) -> list[TileShape]:
        """Shapes of an op whose kind defines the task: those that fill the SMs evenly first, wide before narrow."""
        widest, lanes = min(MAX_PRODUCT_COLUMNS, -(-op.n // COLUMNS) * COLUMNS), self._gpu.num_clusters(1)
        tiles = (
            tiles_of(op, height.m, n, self._workload.dtype)[0]
            for n in range(min(NARROWEST, widest), widest + 1, COLUMNS)
        )
        counted = ((tile, num_tiles(op, tile)) for tile in tiles)
        shapes = (
            TileShape(tile=tile, parts=1, has_tail=False, rate=rate, num_tasks=count, task_us=TASK_US, num_sums=0)
            for tile, count in counted
            for rate in (count / (lanes * ceil(count / lanes)),)
        )
        return sorted(shapes, key=lambda shape: (-round(shape.rate, 3), -shape.tile.n))

    def all_shapes(self, op: TileOp, height: Height) -> list[TileShape]:
        """All shapes of an op, the fastest first."""
        if not op.IS_PRODUCT:
            return self._own_shapes(op, height) if height.cluster_size == 1 else []
        dtype = self._workload.dtype
        most = (MAX_SHARED_ROWS if height.swap_ab else MAX_PRODUCT_COLUMNS) // op.rows_per_column
        widest = min(most, -(-op.n // COLUMNS) * COLUMNS)
        tiles = [
            tile
            for n in range(min(NARROWEST, widest), widest + 1, COLUMNS)
            for tile in tiles_of(op, height.m, n, dtype, height.cluster_m)
            if _can_multiply(op, tile, height, dtype) and _can_share(op, tile, height)
        ]
        shapes = [self._shape(op, tile, parts, height) for tile in tiles for parts in self.parts(op, tile, height)]

        def off_good(shape: TileShape) -> int:
            return abs(weight_stage_bytes(op, shape.tile, dtype) - GOOD_STAGE_BYTES)

        return sorted(shapes, key=lambda shape: (-round(shape.rate, 3), off_good(shape)))

    def _shape(self, op: TileOp, tile: Tile, parts: int, height: Height) -> TileShape:
        """A shape with its rate: the op's roofline time over the busiest SM's, judged by bytes and by products."""
        gpu, num_rows, all_steps = self._gpu, ceil(op.m / tile.m), num_steps(op, tile)
        num_lanes = gpu.num_clusters(height.cluster_size)
        num_whole, num_parted = waves(num_tiles(op, tile), parts, num_lanes)
        # For one k-step of an SM.
        crowding = tile.n * tile.k * num_lanes * height.cluster_k / (num_rows * op.n * op.k)
        memory_us = 1e6 * op.weight_bytes(self._workload.dtype) / gpu.dram_bytes_per_s
        product_us = 2e6 * op.m * op.weight_rows * op.k / gpu.tensor_flops_per_s / self._workload.dtype.row.tensor_speed
        columns = tile.n * op.rows_per_column
        a_rows, b_rows = multiplied(op, height.of_cta(tile), height.groups, swap_ab=height.swap_ab)
        padding = num_rows * a_rows * b_rows * height.cluster_m / (op.m * columns)
        tensor_us = product_us * padding / tensor_share(columns_at_once(op, b_rows, swap_ab=height.swap_ab))
        step_us = max(crowding * max(memory_us, tensor_us), converting_us(op, a_rows, tile.k, height.num_warps, gpu))
        slot_bytes = height.of_cta(tile).m * columns * SUM_BYTES
        fixed_us = TASK_US + exchange_us(height.cluster_k, slot_bytes, gpu, SUM_KIB)
        steps = ceil(all_steps / height.cluster_k)
        whole_us, task_us = (own * step_us + fixed_us for own in (steps, ceil(steps / parts)))
        sum_us = 0.0
        if parts > 1:
            slot_us = slot_bytes / L2_BYTES_PER_CLOCK / gpu.clock_mhz
            is_read = bool(self._workload.consumers_of(self._workload.tile_ops.index(op)))
            sum_us = (READ_PART_US if is_read else PART_US) + (1 + parts) * slot_us
        return TileShape(
            tile=tile,
            parts=parts,
            has_tail=parts > 1 and num_whole > 0,
            rate=max(memory_us, product_us) / (num_whole * whole_us + num_parted * task_us + sum_us),
            num_tasks=num_tiles(op, tile) * parts,
            task_us=task_us + sum_us,
            num_sums=num_accumulators(op, height.of_cta(tile), height.groups, swap_ab=height.swap_ab),
        )

    def parts(self, op: TileOp, tile: Tile, height: Height) -> tuple[int, ...]:
        """Numbers of parts of a tile; one if CTAs split its K. With more than one, all tasks still run at once, or
        at few rows in two waves. The second wave then reads what the previous op's first wave has written last. If
        tiles fill more than a wave, the tail is split into the parts that make it shortest, if any do."""
        if height.cluster_k > 1:
            return (1,)
        num_lanes, count = self._gpu.num_clusters(height.cluster_size), num_tiles(op, tile)
        most = num_steps(op, tile) // MIN_STEPS_PER_PART
        if self._rows > FEW_ROWS and count > num_lanes:
            possible = [parts for parts in PARTS if parts == 1 or parts <= most]
            best = min(possible, key=lambda parts: waves(count, parts, num_lanes)[1] / parts)
            return (1, best) if best > 1 else (1,)
        at_once = num_lanes * (2 if self._rows <= FEW_ROWS else 1) // count
        return tuple(parts for parts in PARTS if parts == 1 or parts <= min(most, at_once))


def _most_combinations(height: Height) -> int:
    return MAX_COMBINATIONS if height.cluster_k == 1 else MAX_SHARING_COMBINATIONS


def _can_multiply(op: TileOp, tile: Tile, height: Height, dtype: Dtype) -> bool:
    """Whether the warpgroups can compute the tile."""
    is_busy = height.warpgroups is Warpgroups.PING_PONG
    swap_ab, shares_k = height.swap_ab, height.cluster_k > 1
    most = most_accumulators(op, height.groups, swap_ab=swap_ab, shares_k=shares_k, is_busy=is_busy)
    most = min(most, most_converted(op))
    return tile_problem(op, height.of_cta(tile), height.groups, dtype, swap_ab=swap_ab, most=most) is None


def _can_share(op: TileOp, tile: Tile, height: Height) -> bool:
    """Whether each of the CTAs that split a tile's K has enough steps, and something to finish."""
    sharers, size = height.cluster_k, tile.m if height.swap_ab else tile.n
    return sharers == 1 or (num_steps(op, tile) >= MIN_STEPS_PER_PART * sharers and size >= COLUMNS * sharers)


def _leave_registers(shapes: tuple[TileShape, ...]) -> bool:
    """Whether parts of any op can be added up, given the fp32 sums of all ops."""
    return max(shape.parts for shape in shapes) == 1 or max(shape.num_sums for shape in shapes) <= MAX_ACCUMULATORS_BUSY


def _fast_and_small(shape: TileShape) -> tuple[float, int]:
    """A key for the smallest of the fastest shapes: it keeps the most SMs busy."""
    return round(shape.rate, 3), shape.num_tasks


def by_rate(shapes: tuple[TileShape, ...]) -> float:
    """A key for sorting combined tile shapes: smallest if all ops are fast."""
    return -round(min(shape.rate for shape in shapes) + sum(shape.rate for shape in shapes), 3)


def balanced_us(shapes: tuple[TileShape, ...], lanes: int) -> float:
    """For ops that follow each other, assigned to the SMs in turn: the time halfway between two bounds. One is the
    time of the SM with the most work over all ops, as if weights ran ahead without limit. The other is the sum over ops
    of the busiest SM's time, as if none did."""
    loads_us, assigned, each_us = np.zeros(lanes), 0, 0.0
    for shape in shapes:
        counts = np.bincount((assigned + np.arange(shape.num_tasks)) % lanes, minlength=lanes)
        loads_us += counts * shape.task_us
        each_us += float(counts.max()) * shape.task_us
        assigned += shape.num_tasks
    return round((float(loads_us.max()) + each_us) / 2, 3)


def _makespan_us(shapes: tuple[TileShape, ...], lanes: int) -> float:
    """Lower bound of the time of all ops' tasks on `lanes` SMs or clusters."""
    num_waves = ceil(sum(shape.num_tasks for shape in shapes) / lanes)
    all_us = sum(shape.num_tasks * shape.task_us for shape in shapes)
    times_us = [shape.task_us for shape in shapes]
    return max(all_us / lanes, max(times_us), num_waves * min(times_us))


def tiles_of(op: TileOp, tile_m: int, tile_n: int, dtype: Dtype, cluster_m: int = 1) -> list[Tile]:
    """Tiles with depths that give stages of weights a good size; if rows are too few for that, the deepest useful one.

    If a CTA has many rows of a tile, its stages of inputs are as large as those of the weights, so it takes the
    shallowest.
    """
    depths = [depth for depth in stage_depths(dtype) if depth_problem(op, depth) is None]
    useful = [Tile(m=tile_m, n=tile_n, k=k) for k in depths if k == depths[0] or 2 * k <= op.k]
    if tile_m // cluster_m > FEW_ROWS:
        return useful[:1]
    fitting = [tile for tile in useful if weight_stage_bytes(op, tile, dtype) <= STAGE_BYTES[1]]
    return [tile for tile in fitting if weight_stage_bytes(op, tile, dtype) >= STAGE_BYTES[0]] or fitting[-1:]
