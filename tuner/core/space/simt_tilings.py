"""Tilings of the simt engine that are worth trying: for up to four rows, where loading the weights dominates; for more
if no other engine runs the workload, e.g. because no tensor core multiplies its elements.

An op takes as long as its busiest SM. So tile shapes are chosen to fill whole waves of SMs, or of two CTAs per SM.
Rings take all or half of the shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from tuner.core.legal.legality import engine_problem, register_cap, tiling_problem
from tuner.core.legal.simt import (
    MAX_STAGES,
    MAX_SUMS,
    NUM_WARPS,
    TILE_MS,
    smem_bytes,
    stage_depths,
    tile_problem,
)
from tuner.core.plan.order.split_k import num_steps, num_tiles
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES, Gpu
from tuner.core.problem.resources import MAX_REGISTERS_PER_THREAD
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.space.combined import best_together

PARTS = (1, 2, 4)
MIN_STEPS_PER_PART = 2
#: Range of a stage's weights, bytes: smaller stages cost turns of the ring, larger ones leave too few stages.
STAGE_BYTES = (8_192, 61_440)
#: Proposed tile shapes per op, those that fill the SMs best first.
NUM_SHAPES = 5
#: Maximum combined tile shapes of all ops; for a pair, these are all combinations.
MAX_COMBINATIONS = 81
#: Time per task for words, barriers, sums over lanes and epilogue; and for the arrival of a part.
TASK_US = 0.5
PART_US = 1.0
#: Tilings that are tried before a model exists.
NUM_GUESSES = 2


@dataclass(frozen=True, kw_only=True)
class TileShape:
    """A tile of an op and its number of parts, which determine the op's tasks."""

    tile: Tile
    #: Parts of a tile.
    parts: int
    #: Time of the busiest SM, counting only bytes, microseconds.
    busy_us: float


class SimtTilings:
    """The proposed tilings; empty if another engine is better, or the engine does not support the workload."""

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        self._workload = workload
        self._gpu = gpu
        self._rows = max(op.m for op in workload.tile_ops)

    @property
    def is_there(self) -> bool:
        """Whether any tilings are proposed."""
        runs = [one for one in Engine if engine_problem(self._workload, self._gpu, one) is None]
        return Engine.SIMT in runs and (self._rows <= TILE_MS[-1] or runs == [Engine.SIMT])

    def tilings(self) -> Iterator[Tiling]:
        """All proposed tilings, without duplicates; those that fill the SMs best first, for 8 warps and then for 4."""
        for num_warps in reversed(NUM_WARPS) if self.is_there else ():
            shapes_of_ops = [self._shapes(op, num_warps) for op in self._workload.tile_ops]
            if not all(shapes_of_ops):
                continue
            for shapes in sorted(best_together(shapes_of_ops, MAX_COMBINATIONS), key=_busy_us):
                yield from self._with_rings(shapes, num_warps)

    def guesses(self) -> list[Tiling]:
        """Starting points: the fastest tile shapes for each number of warps."""
        first: dict[int, Tiling] = {}
        for tiling in self.tilings():
            first.setdefault(tiling.num_warps, tiling)
        return list(first.values())[:NUM_GUESSES]

    def near(self, tiling: Tiling) -> Iterator[Tiling]:
        """Tilings that differ in the tile shape of one op, in warps, or in stages; the ring gets shorter if
        necessary."""
        whole = tiling.split_k or (1,) * len(tiling.tiles)
        for index, op in enumerate(self._workload.tile_ops):
            shapes = {(shape.tile, shape.parts) for shape in self._shapes(op, tiling.num_warps)}
            shapes |= {(replace(tiling.tiles[index], k=k), whole[index]) for k in stage_depths(self._workload.dtype)}
            shapes |= {(tiling.tiles[index], parts) for parts in PARTS}
            for changed, parts in sorted(shapes, key=str):
                split = (*whole[:index], parts, *whole[index + 1 :])
                tiles = (*tiling.tiles[:index], changed, *tiling.tiles[index + 1 :])
                yield from self._fitted(replace(tiling, tiles=tiles, split_k=split if max(split) > 1 else ()))
        yield from (replace(tiling, num_warps=num_warps) for num_warps in NUM_WARPS)
        yield from (replace(tiling, num_stages=num_stages) for num_stages in range(2, MAX_STAGES + 1))

    @property
    def tile_m(self) -> int:
        """The height of a tile: all rows if there are few, so that each weight is read once."""
        return next((m for m in TILE_MS if m >= self._rows), TILE_MS[-1])

    def _shapes(self, op: TileOp, num_warps: int) -> list[TileShape]:
        """The op's tile shapes that fill the SMs best; among equals, those with the deepest stage of a good size."""
        dtype, depths = self._workload.dtype, stage_depths(self._workload.dtype)
        widest = min(MAX_SUMS * num_warps // (self.tile_m * op.rows_per_column), -(-op.n // num_warps) * num_warps)
        tiles = [
            Tile(m=self.tile_m, n=n, k=k)
            for n in range(num_warps, widest + 1, num_warps)
            for k in depths
            if STAGE_BYTES[0] <= n * op.rows_per_column * k * dtype.size_bytes <= STAGE_BYTES[1]
        ]
        legal = [tile for tile in tiles if tile_problem(op, tile, num_warps, dtype) is None]
        if not legal:
            smallest = Tile(m=self.tile_m, n=num_warps, k=depths[0])
            legal = [smallest] if tile_problem(op, smallest, num_warps, dtype) is None else []
        shapes = [self._shape(op, tile, parts) for tile in legal for parts in self._parts(op, tile)]
        shapes.sort(key=lambda shape: (round(shape.busy_us, 2), shape.parts, -shape.tile.k))
        return shapes[:NUM_SHAPES]

    def _shape(self, op: TileOp, tile: Tile, parts: int) -> TileShape:
        num_sms, steps = self._gpu.num_sms, ceil(num_steps(op, tile) / parts)
        num_waves = ceil(num_tiles(op, tile) * parts / num_sms)
        task_bytes = tile.n * op.rows_per_column * steps * tile.k * self._workload.dtype.size_bytes
        task_us = 1e6 * task_bytes * num_sms / self._gpu.dram_bytes_per_s + TASK_US + PART_US * (parts > 1)
        return TileShape(tile=tile, parts=parts, busy_us=num_waves * task_us)

    def _parts(self, op: TileOp, tile: Tile) -> tuple[int, ...]:
        """Numbers of parts of a tile: with more than one, two CTAs per SM still run all tasks at once."""
        most = min(num_steps(op, tile) // MIN_STEPS_PER_PART, 2 * self._gpu.num_sms // num_tiles(op, tile))
        return tuple(parts for parts in PARTS if parts == 1 or parts <= most)

    def _with_rings(self, shapes: tuple[TileShape, ...], num_warps: int) -> Iterator[Tiling]:
        """Tilings with rings as deep as possible with one CTA per SM, and with two."""
        parts = tuple(shape.parts for shape in shapes)
        bare = Tiling(
            engine=Engine.SIMT,
            tiles=tuple(shape.tile for shape in shapes),
            num_stages=2,
            num_warps=num_warps,
            split_k=parts if max(parts) > 1 else (),
        )
        both = zip(self._workload.tile_ops, shapes, strict=True)
        num_tasks = sum(num_tiles(op, shape.tile) * shape.parts for op, shape in both)
        resident = 1 if register_cap(replace(bare, resident_ctas=2)) == MAX_REGISTERS_PER_THREAD else 2
        for ctas, capped in ((1, 1), (2, resident)) if num_tasks > self._gpu.num_sms else ((1, 1),):
            tiling = replace(bare, num_stages=self._deepest(bare, ctas), resident_ctas=capped)
            if tiling_problem(self._workload, self._gpu, tiling) is None:
                yield tiling

    def _deepest(self, tiling: Tiling, ctas_per_sm: int) -> int:
        """The most stages with which `ctas_per_sm` CTAs fit on an SM."""
        fixed = smem_bytes(self._workload, replace(tiling, num_stages=0))
        each = smem_bytes(self._workload, replace(tiling, num_stages=1)) - fixed
        share = self._gpu.smem_per_sm_bytes // ctas_per_sm
        room = min(self._gpu.smem_per_cta_bytes, share - SMEM_RESERVED_PER_CTA_BYTES)
        return min(MAX_STAGES, max(0, room - fixed) // each)

    def _fitted(self, tiling: Tiling) -> Iterator[Tiling]:
        """The tiling with as many of its stages as fit; empty if too few do."""
        num_stages = min(tiling.num_stages, self._deepest(tiling, tiling.resident_ctas))
        if num_stages >= 2:
            yield replace(tiling, num_stages=num_stages)


def _busy_us(shapes: tuple[TileShape, ...]) -> float:
    return round(sum(shape.busy_us for shape in shapes), 3)
