"""Schedules of chains to begin with: each op fills the SMs in whole waves, and all ops' stages are of one size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from tuner.core.legal.legality import dynamic_smem_bytes, tiling_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import GemmOp, Workload
from tuner.core.schedule.ordering import Assignment, Granularity, Ordering, Raster, Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling

#: What an SM reads, and multiplies, in a microsecond: the card's 4.4 TB/s and 790 TFLOP/s over 132.
_BYTES_A_US, _FLOPS_A_US = 33_300.0, 6.0e6
#: A part of a tile that is not whole, and each task: microseconds that nothing hides.
_PART_US, _TASK_US = 0.8, 0.4
_TILE_NS = (*range(8, 137, 8), 160, 176, 192, 208, 224, 256)
_TILE_KS = (64, 128, 256, 512)
_PARTS = (1, 2, 3, 4, 6, 8)
#: Elements of a stage of weights.
STAGES = (8192, 16384)
#: Options of an op that are tried, beside the best options of all others.
_NUM_OPTIONS = 3


@dataclass(frozen=True, kw_only=True, order=True)
class Option:
    """How one op may be cut."""

    #: By the bytes or the products of the SM that has most.
    forecast_us: float
    tile_n: int
    tile_k: int
    parts: int


def rows_of_tile(m: int) -> int:
    """Of a CTA's tile."""
    return min(128, -(-m // 16) * 16)


def options_of(op: GemmOp, gpu: Gpu, stage: int) -> list[Option]:
    """The likeliest first; one for each pair of width and parts."""
    found = []
    tile_m = rows_of_tile(op.m)
    for tile_n in _TILE_NS:
        rows = tile_n * op.rows_per_column
        tile_k = max((k for k in _TILE_KS if rows * k <= stage and tile_m * k <= 2 * stage), default=0)
        if not tile_k or rows > 256 or tile_k > op.k:
            continue
        steps, tiles = -(-op.k // tile_k), -(-op.n // tile_n) * -(-op.m // tile_m)
        for parts in _PARTS:
            if parts > 1 and steps < 4 * parts:
                continue
            waves, depth = -(-tiles * parts // gpu.num_sms), -(-steps // parts) * tile_k
            task_us = max(2 * rows * depth / _BYTES_A_US, 2 * tile_m * rows * depth / _FLOPS_A_US)
            forecast = waves * (task_us + _TASK_US) + (parts > 1) * _PART_US
            found.append(Option(forecast_us=forecast, tile_n=tile_n, tile_k=tile_k, parts=parts))
    return sorted(found)


def tilings_of(workload: Workload, gpu: Gpu) -> list[Tiling]:
    """The best option of every op, then with one op's next ones."""
    found: list[Tiling] = []
    for stage in STAGES:
        offered = [options_of(op, gpu, stage)[:_NUM_OPTIONS] for op in workload.ops]
        if not all(offered):
            continue
        best = [options[0] for options in offered]
        choices = [best] + [
            [*best[:index], option, *best[index + 1 :]]
            for index, options in enumerate(offered)
            for option in options[1:]
        ]
        found += [tiling for choice in choices if (tiling := _tiling(workload, gpu, choice))]
    return list(dict.fromkeys(found))


def _tiling(workload: Workload, gpu: Gpu, choice: list[Option]) -> Tiling | None:
    """With as many stages as fit; None where there is no such tiling."""
    tile_m = rows_of_tile(workload.ops[0].m)
    parts = tuple(option.parts for option in choice)
    plain = Tiling(
        engine=Engine.WGMMA,
        tiles=tuple(Tile(m=tile_m, n=option.tile_n, k=option.tile_k) for option in choice),
        num_stages=2,
        input_stages=2,
        num_warps=4 if tile_m <= 64 else 8,
        split_k=parts if max(parts) > 1 else (),
        startup_prefetch=8 if tile_m <= 64 else 0,
    )
    fitting = [
        tiling
        for stages in range(16, 2, -1)
        for inputs in {min(stages, 12), min(6, stages), min(4, stages)}
        if dynamic_smem_bytes(workload, tiling := replace(plain, num_stages=stages, input_stages=inputs))
        <= gpu.smem_per_cta_bytes
        and tiling_problem(workload, gpu, tiling) is None
    ]
    return max(fitting, key=lambda tiling: (tiling.num_stages, tiling.input_stages), default=None)


def orderings_of(workload: Workload, *, is_fused: bool) -> Iterator[Ordering]:
    """Plain queues; of a fused launch also with signals of several columns, and of tiles."""
    plain = Ordering(rasters=(Raster(),) * len(workload.ops), assignment=Assignment.STATIC)
    yield plain
    if is_fused:
        yield replace(plain, granularity=Granularity.CHUNK, sync_width=8)
        yield replace(plain, assignment=Assignment.FIRST_WAVE)


def schedules_of(workload: Workload, gpu: Gpu, *, is_fused: bool) -> list[Schedule]:
    """All tilings in the plainest order, then in the others."""
    tilings = tilings_of(workload, gpu)
    return [
        Schedule(tiling=tiling, ordering=ordering)
        for ordering in orderings_of(workload, is_fused=is_fused)
        for tiling in tilings
    ]


def in_runs_of(schedule: Schedule) -> list[Schedule]:
    """The same in every way of launching runs of neighbouring ops: two runs at least, and fewer than ops."""
    num_ops = len(schedule.tiling.tiles)
    starts = (one for count in range(1, num_ops - 1) for one in combinations(range(1, num_ops), count))
    return [replace(schedule, ordering=replace(schedule.ordering, run_starts=one)) for one in starts]
