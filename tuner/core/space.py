"""The space of a workload on a GPU: the values offered on each axis, and every legal combination of them.

What is legal is said in `tuner.core.legality`; here is what is worth trying. A legal schedule with other values
(unequal tile heights, say) can be asked for by name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import overload

from tuner.core.gpu import Gpu
from tuner.core.legality import (
    STAGE_DEPTHS,
    check_schedule,
    dynamic_smem_bytes,
    estimated_resources,
    gpu_problem,
    granularity_problem,
    grid_problem,
    interleave_problem,
    raster_problem,
    tiling_problem,
)
from tuner.core.order import row_blocks, tallest_block
from tuner.core.schedule import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    Schedule,
    Tile,
    Tiling,
)
from tuner.core.tiles import tile_graph
from tuner.core.workload import Workload
from tuner.errors import IllegalSchedule

__all__ = ["Space", "check_schedule", "dynamic_smem_bytes", "estimated_resources"]

TILE_MS = (16, 32, 64, 128, 256)
TILE_NS = (32, 64, 96, 128, 160, 192, 224, 256)
STAGES = (2, 3, 4, 5, 6, 8)
WARPS = (4, 8)
RASTERS = (
    Raster(kind=RasterKind.ROW),
    Raster(kind=RasterKind.COLUMN),
    *(Raster(kind=RasterKind.GROUPED, width=width) for width in (2, 4, 8)),
    *(Raster(kind=RasterKind.PANEL, width=width) for width in (2, 4, 8, 16)),
)
INTERLEAVES = (Interleave(), *(Interleave(kind=InterleaveKind.BANDS, rows=rows) for rows in (1, 2, 4, 8, 16)))
#: (CTAs per SM, reserved SMs).
GRIDS = tuple(product((1, 2), (0, 4)))
#: More tile rows than this are not offered where a taller tile gives fewer.
MAX_TILE_ROWS = 64


def _useful(values: Sequence[int], size: int) -> tuple[int, ...]:
    """The values up to the first that covers `size`: a larger tile would only be padding."""
    enough = next((i for i, value in enumerate(values) if value >= size), len(values) - 1)
    return tuple(values[: enough + 1])


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """Legal values per axis of the orderings that share an interleave; any combination is legal."""

    interleave: Interleave
    #: Per op.
    rasters: tuple[tuple[Raster, ...], ...]
    granularities: tuple[Granularity, ...]
    grids: tuple[tuple[int, int], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return (*map(len, self.rasters), len(self.granularities), len(Assignment), len(self.grids))

    def ordering(self, index: int) -> Ordering:
        digits = []
        for size in reversed(self.sizes):
            index, digit = divmod(index, size)
            digits.append(digit)
        *rasters, granularity, assignment, grid = reversed(digits)
        ctas_per_sm, reserved_sms = self.grids[grid]
        return Ordering(
            rasters=tuple(values[digit] for values, digit in zip(self.rasters, rasters, strict=True)),
            interleave=self.interleave,
            granularity=self.granularities[granularity],
            assignment=tuple(Assignment)[assignment],
            ctas_per_sm=ctas_per_sm,
            reserved_sms=reserved_sms,
        )


class Orderings(Sequence[Ordering]):
    """The legal orderings of one tiling, made when indexed."""

    def __init__(self, choices: tuple[_Choices, ...]) -> None:
        self._choices = choices
        self._counts = [prod(choice.sizes) for choice in choices]
        self._count = sum(self._counts)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Ordering: ...
    @overload
    def __getitem__(self, index: slice) -> list[Ordering]: ...
    def __getitem__(self, index: int | slice) -> Ordering | list[Ordering]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        for choice, count in zip(self._choices, self._counts, strict=True):
            if index < count:
                return choice.ordering(index)
            index -= count
        raise IndexError(index)


class Space:
    """Every legal schedule made of the offered values.

    Raises:
        IllegalSchedule: the GPU runs none.
    """

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        if problem := gpu_problem(gpu):
            raise IllegalSchedule(problem)
        self.workload = workload
        self.gpu = gpu
        self._merges: dict[tuple[int, ...], list[tuple[Interleave, tuple[int, ...]]]] = {}

    @cached_property
    def tile_ms(self) -> tuple[int, ...]:
        """Offered tile heights, shared by the ops: none beyond the rows, none that makes needlessly many tile rows."""
        rows = max(op.m for op in self.workload.ops)
        useful = _useful(TILE_MS, rows)
        return tuple(value for value in useful if -(-rows // value) <= MAX_TILE_ROWS) or useful[-1:]

    def tile_ns(self, op: int) -> tuple[int, ...]:
        """Offered tile widths of an op."""
        return _useful(TILE_NS, self.workload.ops[op].n)

    @cached_property
    def tile_ks(self) -> tuple[int, ...]:
        """Offered stage depths, shared by the ops."""
        return _useful(STAGE_DEPTHS, max(op.k for op in self.workload.ops))

    @cached_property
    def tilings(self) -> tuple[Tiling, ...]:
        """All legal tilings of the offered values."""
        widths = tuple(product(*map(self.tile_ns, range(len(self.workload.ops)))))
        offered = (
            Tiling(tiles=tuple(Tile(m=m, n=n, k=k) for n in ns), num_stages=num_stages, num_warps=num_warps)
            for m, ns, k, num_stages, num_warps in product(self.tile_ms, widths, self.tile_ks, STAGES, WARPS)
        )
        return tuple(tiling for tiling in offered if tiling_problem(self.workload, self.gpu, tiling) is None)

    def orderings(self, tiling: Tiling) -> Orderings:
        """All legal orderings of a tiling, from the offered values."""
        graph = tile_graph(self.workload, tiling)
        resources = estimated_resources(self.workload, tiling)
        granularities = tuple(value for value in Granularity if granularity_problem(graph, value) is None)
        grids = tuple(grid for grid in GRIDS if grid_problem(graph.num_tasks, resources, self.gpu, *grid) is None)
        choices = tuple(
            _Choices(
                interleave=interleave,
                rasters=tuple(_rasters(heights[op], cols) for op, (_, cols) in graph.grids.items()),
                granularities=granularities,
                grids=grids,
            )
            for interleave, heights in self._interleaves(graph.tile_ms)
        )
        return Orderings(choices)

    def _interleaves(self, tile_ms: tuple[int, ...]) -> list[tuple[Interleave, tuple[int, ...]]]:
        """The legal interleaves for tiles of these heights, each with the tile rows of every op's tallest block."""
        if tile_ms not in self._merges:
            ops = tuple(range(len(self.workload.ops)))
            legal = [i for i in INTERLEAVES if interleave_problem(self.workload, tile_ms, i) is None]
            blocks = [row_blocks(self.workload, tile_ms, ops, interleave) for interleave in legal]
            self._merges[tile_ms] = [
                (interleave, tuple(tallest_block(merged, op) for op in ops))
                for interleave, merged in zip(legal, blocks, strict=True)
            ]
        return self._merges[tile_ms]

    @cached_property
    def num_schedules(self) -> int:
        """Legal schedules of the offered values."""
        return sum(len(self.orderings(tiling)) for tiling in self.tilings)

    def __iter__(self) -> Iterator[Schedule]:
        for tiling in self.tilings:
            for ordering in self.orderings(tiling):
                yield Schedule(tiling=tiling, ordering=ordering)

    def sample(self, rng: random.Random, count: int) -> list[Schedule]:
        """`count` different legal schedules, or all where there are fewer: every tiling has its turn before one has
        its second."""
        tilings = list(self.tilings)
        rng.shuffle(tilings)
        drawn: list[Schedule] = []
        taken: dict[Tiling, set[int]] = {}
        while tilings and len(drawn) < count:
            spent = set()
            for tiling in tilings[: count - len(drawn)]:
                orderings, seen = self.orderings(tiling), taken.setdefault(tiling, set())
                index = _unseen(rng, len(orderings), seen)
                drawn.append(Schedule(tiling=tiling, ordering=orderings[index]))
                if len(seen) == len(orderings):
                    spent.add(tiling)
            tilings = [tiling for tiling in tilings if tiling not in spent]
        return drawn

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """The legal schedules that differ from this one in the value of one axis."""
        candidates = [Schedule(tiling=tiling, ordering=schedule.ordering) for tiling in self._near(schedule.tiling)]
        candidates += [
            Schedule(tiling=schedule.tiling, ordering=ordering) for ordering in self._reordered(schedule.ordering)
        ]
        return [candidate for candidate in candidates if candidate != schedule and self._is_legal(candidate)]

    def _is_legal(self, schedule: Schedule) -> bool:
        try:
            check_schedule(self.workload, self.gpu, schedule)
        except IllegalSchedule:
            return False
        return True

    def _near(self, tiling: Tiling) -> Iterator[Tiling]:
        for m in self.tile_ms:
            yield replace(tiling, tiles=tuple(replace(tile, m=m) for tile in tiling.tiles))
        for k in self.tile_ks:
            yield replace(tiling, tiles=tuple(replace(tile, k=k) for tile in tiling.tiles))
        for op, tile in enumerate(tiling.tiles):
            for n in self.tile_ns(op):
                changed = replace(tile, n=n)
                yield replace(tiling, tiles=(*tiling.tiles[:op], changed, *tiling.tiles[op + 1 :]))
        yield from (replace(tiling, num_stages=num_stages) for num_stages in STAGES)
        yield from (replace(tiling, num_warps=num_warps) for num_warps in WARPS)

    @staticmethod
    def _reordered(ordering: Ordering) -> Iterator[Ordering]:
        for op, raster in product(range(len(ordering.rasters)), RASTERS):
            rasters = (*ordering.rasters[:op], raster, *ordering.rasters[op + 1 :])
            yield replace(ordering, rasters=rasters)
        yield from (replace(ordering, interleave=interleave) for interleave in INTERLEAVES)
        yield from (replace(ordering, granularity=granularity) for granularity in Granularity)
        yield from (replace(ordering, assignment=assignment) for assignment in Assignment)
        ctas, reserved = zip(*GRIDS, strict=True)
        yield from (replace(ordering, ctas_per_sm=value) for value in sorted(set(ctas)))
        yield from (replace(ordering, reserved_sms=value) for value in sorted(set(reserved)))


@lru_cache(maxsize=4096)
def _rasters(block_rows: int, tile_cols: int) -> tuple[Raster, ...]:
    """The offered rasters that are legal on blocks of this size."""
    return tuple(raster for raster in RASTERS if raster_problem(raster, block_rows, tile_cols, "") is None)


def _unseen(rng: random.Random, size: int, seen: set[int]) -> int:
    """A random index below `size` that is not in `seen`, which it joins."""
    index = rng.randrange(size)
    while index in seen:
        index = (index + 1) % size
    seen.add(index)
    return index
