"""Tilings of the mma engine that are worth trying on a workload and a GPU.

For a pair, every combination of the proposed values is included. For a longer chain that would be a hundred thousand or
more. There, each op's tile shapes are ranked separately, as if the op had all SMs, and only the best of them are
combined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, product
from math import ceil

from tuner.core.legal.legality import tiling_problem
from tuner.core.legal.mma import converts_weights, stage_depths, warp_grid
from tuner.core.plan.order.split_k import num_steps, num_tiles
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.space.combined import best_together

TILE_MS = (16, 32, 64, 128, 256)
TILE_NS = (32, 64, 96, 128, 160, 192, 224, 256)
STAGES = (2, 3, 4, 5, 6, 8)
SPLITS = (1, 2, 3, 4, 8)
#: Minimum k-steps of a proposed part.
MIN_STEPS_PER_PART = 4
WARPS = (4, 8)
#: Depth of a stage in a guessed tiling.
GUESSED_DEPTH = 32
#: Maximum tile rows of a proposed tiling, unless no taller tile gives fewer.
MAX_TILE_ROWS = 64
#: Number of ops up to which every combination is proposed.
MOST_COMBINED_OPS = 2
#: Maximum combined tile shapes of a longer chain, for each height, depth and number of warps.
MAX_COMBINATIONS = 16


class MmaTilings:
    """The offered tilings. The engine runs every workload on every GPU."""

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        self._workload = workload
        self._gpu = gpu
        self._split: dict[tuple[Tile, ...], tuple[tuple[int, ...], ...]] = {}

    @cached_property
    def tile_ms(self) -> tuple[int, ...]:
        """Proposed tile heights, shared by the ops: not above the number of rows, and not with needlessly many tile
        rows."""
        rows = max(op.m for op in self._workload.tile_ops)
        useful = _useful(TILE_MS, rows)
        return tuple(value for value in useful if -(-rows // value) <= MAX_TILE_ROWS) or useful[-1:]

    def tile_ns(self, op: int) -> tuple[int, ...]:
        """Proposed tile widths of an op: those whose slice of W has the proposed rows."""
        one = self._workload.tile_ops[op]
        return _useful(tuple(rows // one.rows_per_column for rows in TILE_NS), one.n)

    @cached_property
    def tile_ks(self) -> tuple[int, ...]:
        """Proposed stage depths, shared by the ops."""
        depths = stage_depths(self._workload.dtype, converts=converts_weights(self._workload))
        return _useful(depths, max(op.k for op in self._workload.tile_ops))

    def tilings(self) -> Iterator[Tiling]:
        """All proposed tilings."""
        if len(self._workload.tile_ops) > MOST_COMBINED_OPS:
            yield from self._of_a_chain()
        else:
            yield from (split for tiling in self._whole() for split in self._splits(tiling))

    def guesses(self) -> Iterator[Tiling]:
        """Starting points if an op's kind defines its task: for each number of warps, tiles of each op that fill the
        SMs, whatever the heights of the others. There are none for other workloads."""
        depth = next((k for k in self.tile_ks if k >= GUESSED_DEPTH), self.tile_ks[-1])
        for num_warps in WARPS if self._workload.own_tile_ops else ():
            ranked = [self._filling(op, depth, num_warps) for op in range(len(self._workload.tile_ops))]
            if all(ranked):
                tiles = tuple(one[0] for one in ranked)
                yield from self._in_rings(Tiling(tiles=tiles, num_stages=2, num_warps=num_warps))

    def _filling(self, op: int, k: int, num_warps: int) -> list[Tile]:
        """Tiles of an op that `num_warps` warps can compute; those with which the busiest SM loads or computes the
        fewest elements come first, among equals those in the fewest waves."""
        shape = self._workload.tile_ops[op]
        tiles = (Tile(m=m, n=n, k=k) for m, n in product(range(16, TILE_MS[-1] + 1, 16), self.tile_ns(op)))
        fitting = [tile for tile in tiles if warp_grid(tile, num_warps, shape.rows_per_column)]

        def busiest(tile: Tile) -> tuple[float, int]:
            waves = ceil(num_tiles(shape, tile) / self._gpu.num_sms)
            of_own_task = waves * min(tile.m, shape.m) * min(tile.n, shape.n)
            return self._steps_of_busiest(op, tile, 1)[0] if shape.IS_PRODUCT else of_own_task, waves

        return sorted(fitting, key=busiest)

    def combined(self, mma: Iterator[Tiling], others: Iterator[Tiling]) -> Iterator[Tiling]:
        """The tilings of all engines, given those of this engine and of the others, which are listed as they are read.
        For weights in fewer bits, those of this engine only if there are no others: wgmma kernels multiply few rows by
        mma.sync, too, and the copy engine loads their codes."""
        if not converts_weights(self._workload):
            return chain(mma, others)
        first = next(others, None)
        return mma if first is None else chain([first], others)

    def parts(self, op: int, tile: Tile) -> tuple[int, ...]:
        """Proposed numbers of parts of an op's tiles: one, and those for which one wave of sufficiently long parts
        fills at least half of the SMs, or as many as it can."""
        shape, num_sms = self._workload.tile_ops[op], self._gpu.num_sms
        most = min(num_steps(shape, tile) // MIN_STEPS_PER_PART, num_sms // num_tiles(shape, tile))
        possible = [parts for parts in SPLITS if 1 < parts <= most]
        filling = [parts for parts in possible if 2 * parts * num_tiles(shape, tile) >= num_sms]
        return (1, *(filling or possible[-1:]))

    def near(self, tiling: Tiling) -> Iterator[Tiling]:
        """Tilings that differ in one value."""
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
        whole = tiling.split_k or (1,) * len(tiling.tiles)
        for op, tile in enumerate(tiling.tiles):
            for parts in self.parts(op, tile):
                split = (*whole[:op], parts, *whole[op + 1 :])
                yield replace(tiling, split_k=split if max(split) > 1 else ())

    def _whole(self) -> Iterator[Tiling]:
        """Legal tilings without split tiles: every combination."""
        widths = tuple(product(*map(self.tile_ns, range(len(self._workload.tile_ops)))))
        offered = (
            Tiling(tiles=tiles, num_stages=num_stages, num_warps=num_warps)
            for m, ns, k in product(self.tile_ms, widths, self.tile_ks)
            for tiles in (tuple(Tile(m=m, n=n, k=k) for n in ns),)
            for num_stages, num_warps in product(STAGES, WARPS)
        )
        return (tiling for tiling in offered if tiling_problem(self._workload, self._gpu, tiling) is None)

    def _splits(self, tiling: Tiling) -> Iterator[Tiling]:
        """The tiling, then each of its legal split-K variants."""
        yield tiling
        for split in self._offered_splits(tiling.tiles):
            parted = tiling.but(split_k=split)
            if tiling_problem(self._workload, self._gpu, parted) is None:
                yield parted

    def _offered_splits(self, tiles: tuple[Tile, ...]) -> tuple[tuple[int, ...], ...]:
        """The proposed numbers of parts for these tiles; cached, since they are needed for every ring and number of
        warps."""
        if (found := self._split.get(tiles)) is None:
            every = product(*(self.parts(op, tile) for op, tile in enumerate(tiles)))
            found = self._split[tiles] = tuple(split for split in every if max(split) > 1)
        return found

    def _of_a_chain(self) -> Iterator[Tiling]:
        """The best combined tile shapes for each height, depth and number of warps, with the deepest legal ring and
        with about two thirds of it."""
        for m, k, num_warps in product(self.tile_ms, self.tile_ks, WARPS):
            ranked = [self._ranked(op, m, k, num_warps) for op in range(len(self._workload.tile_ops))]
            for shapes in best_together(ranked, MAX_COMBINATIONS) if all(ranked) else ():
                parts = tuple(count for _, count in shapes)
                bare = Tiling(
                    tiles=tuple(tile for tile, _ in shapes),
                    num_stages=2,
                    num_warps=num_warps,
                    split_k=parts if max(parts) > 1 else (),
                )
                yield from self._in_rings(bare)

    def _in_rings(self, bare: Tiling) -> Iterator[Tiling]:
        deep = (replace(bare, num_stages=num_stages) for num_stages in reversed(STAGES))
        deepest = next((one for one in deep if tiling_problem(self._workload, self._gpu, one) is None), None)
        if deepest is None:
            return
        yield deepest
        fewer = max(value for value in STAGES if value <= max(STAGES[0], round(deepest.num_stages * 2 / 3)))
        shallow = replace(bare, num_stages=fewer)
        if shallow != deepest and tiling_problem(self._workload, self._gpu, shallow) is None:
            yield shallow

    def _ranked(self, op: int, m: int, k: int, num_warps: int) -> list[tuple[Tile, int]]:
        """Tile shapes of an op that `num_warps` warps can multiply, each with a number of parts; those with the
        shortest time, judged by bytes, come first."""
        per_column = self._workload.tile_ops[op].rows_per_column
        tiles = [tile for n in self.tile_ns(op) if warp_grid(tile := Tile(m=m, n=n, k=k), num_warps, per_column)]
        shapes = [(tile, parts) for tile in tiles for parts in self.parts(op, tile)]
        return sorted(shapes, key=lambda shape: self._steps_of_busiest(op, *shape))

    def _steps_of_busiest(self, op: int, tile: Tile, parts: int) -> tuple[float, int]:
        """Elements that the SM with the most tasks multiplies or loads; among equals, wider tiles come first."""
        shape = self._workload.tile_ops[op]
        waves = ceil(num_tiles(shape, tile) * parts / self._gpu.num_sms)
        columns = tile.n * shape.rows_per_column
        return waves * ceil(num_steps(shape, tile) / parts) * tile.k * (columns + tile.m), -tile.n


def _useful(values: Sequence[int], size: int) -> tuple[int, ...]:
    """The values up to the first that covers `size`: larger tiles would only add padding."""
    enough = next((i for i, value in enumerate(values) if value >= size), len(values) - 1)
    return tuple(values[: enough + 1])
