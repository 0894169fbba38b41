"""Paths over the tiles of one product, or of a pair, step by step: possible next tiles, and standard orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.core.plan.order.exact_rasters import best_path, fewest_panels
from tuner.core.plan.order.interleaves import merge_blocks
from tuner.core.plan.order.panel_cache import CachePolicy, CacheStep, cache_steps, reads_of
from tuner.core.plan.order.rasters import raster_path, standard_rasters
from tuner.core.problem.asked import workload_of
from tuner.core.schedule.ordering import Interleave, InterleaveKind, Raster, RasterKind
from tuner.core.schedule.tiling import Tile as TileShape
from tuner.errors import InvalidInput

#: Tile sizes of the pair with which merges are found; any values work, since only the numbers of tiles matter.
_SIDE, _DEPTH = 16, 32


class Stop(NamedTuple):
    """A tile on a path."""

    #: 0 for the first product, 1 for the second.
    op: int
    row: int
    col: int

    @property
    def name(self) -> str:
        """``2.1`` for row 2, column 1 of the first product, ``b2.1`` for the second."""
        return f"{'b' if self.op else ''}{self.row}.{self.col}"


@dataclass(frozen=True, kw_only=True)
class TileGrid:
    """Tiles to process, and the cache that they use."""

    #: Tile rows of both products, tile columns of the first one, and k-steps of its tiles; all >= 1.
    num_rows: int
    num_cols: int
    num_steps: int = 1
    #: Tile columns of a second product, whose k-steps are the first one's tile columns; 0 if there is none.
    second_cols: int = 0
    #: Pieces that the cache holds, >= 2.
    cache_size: int
    policy: CachePolicy = CachePolicy.LRU

    def __post_init__(self) -> None:
        for name, value in (("rows", self.num_rows), ("cols", self.num_cols), ("k", self.num_steps)):
            if value < 1:
                raise InvalidInput(name, f"must be at least 1, got {value}", "use 4")
        if self.cache_size < 2:
            what = f"{self.cache_size} cannot hold what one k-step reads, one piece of each operand"
            raise InvalidInput("cache", what, "use at least 2")

    @property
    def is_pair(self) -> bool:
        """Whether there is a second product."""
        return self.second_cols > 0

    @property
    def num_tiles(self) -> int:
        """Tiles of both products."""
        return self.num_rows * (self.num_cols + self.second_cols)

    def num_cols_of(self, op: int) -> int:
        """Tile columns of a product."""
        return self.second_cols if op else self.num_cols

    def num_steps_of(self, op: int) -> int:
        """K-steps of a product's tiles."""
        return self.num_cols if op else self.num_steps

    def missing(self, stop: Stop, done: set[Stop]) -> list[Stop]:
        """Tiles of the first product that a tile reads and that are not computed yet."""
        if not stop.op:
            return []
        return [need for col in range(self.num_cols) if (need := Stop(0, stop.row, col)) not in done]

    def check(self, path: Sequence[Stop]) -> None:
        """Refuses a path that leaves the grid, visits a tile twice, or visits a tile before its inputs.

        Raises:
            InvalidInput: a step is invalid, with its number.
        """
        done = set[Stop]()
        for number, stop in enumerate(path, start=1):
            where = f"step {number}, tile {stop.name},"
            if not (stop.op <= self.is_pair and stop.row < self.num_rows and stop.col < self.num_cols_of(stop.op)):
                cols = " and ".join(f"{self.num_rows} x {self.num_cols_of(op)}" for op in range(1 + self.is_pair))
                raise InvalidInput("path", f"{where} is outside the grid", f"the grid has {cols} tiles")
            if stop in done:
                raise InvalidInput("path", f"{where} was already computed", "visit each tile once")
            if missing := self.missing(stop, done):
                remedy = f"do {', '.join(need.name for need in missing)} before"
                raise InvalidInput("path", f"{where} reads tiles that are not computed yet", remedy)
            done.add(stop)

    def steps(self, path: Sequence[Stop]) -> list[CacheStep]:
        """The cache along a path.

        Raises:
            InvalidInput: the path is invalid.
        """
        self.check(path)
        reads = [reads_of(stop.op, (stop.row, stop.col), self.num_steps_of(stop.op)) for stop in path]
        return cache_steps(reads, self.cache_size, self.policy)

    def path_of(self, order: StandardOrder) -> tuple[Stop, ...]:
        """The tiles in a standard order.

        Raises:
            InvalidInput: exact paths of a grid this large are not known.
        """
        if not self.is_pair:
            return tuple(Stop(0, *tile) for tile in raster_path(order.raster, self.num_rows, self.num_cols))
        depth, hidden, out = self.num_steps * _DEPTH, self.num_cols * _SIDE, self.second_cols * _SIDE
        pair = workload_of({"kind": "ffn", "m": self.num_rows * _SIDE, "d_in": depth, "d_hidden": hidden, "d_out": out})
        tiles = (TileShape(m=_SIDE, n=_SIDE, k=_DEPTH),) * 2
        return tuple(
            Stop(block.op, row + block.row_begin, col + block.col_begin)
            for block in merge_blocks(pair, tiles, (0, 1), order.merge)
            for row, col in raster_path(order.raster, block.row_end - block.row_begin, block.col_end - block.col_begin)
        )

    def orders(self) -> Iterator[StandardOrder]:
        """The standard orders, each path under its simplest name."""
        if not self.is_pair:
            yield from (StandardOrder(raster=one) for one in standard_rasters(self.num_rows, self.num_cols))
            return
        seen = set[tuple[Stop, ...]]()
        for merge in self._merges():
            for raster in _RASTERS_OF_PAIRS:
                order = StandardOrder(raster=raster, merge=merge)
                if (path := self.path_of(order)) not in seen:
                    seen.add(path)
                    yield order

    def _merges(self) -> Iterator[Interleave]:
        yield Interleave()
        for rows in range(1, self.num_rows):
            yield Interleave(kind=InterleaveKind.BANDS, rows=rows)
        yield Interleave(kind=InterleaveKind.HALF_ROWS)

    def exact(self) -> tuple[int, tuple[Stop, ...]]:
        """The minimum number of pieces that a path from tile 0.0 loads, and the first path that loads so few.

        Raises:
            InvalidInput: exact paths of a grid this large are not known.
        """
        if self.is_pair:
            raise InvalidInput("second_cols", "the exact optimum is not known for a pair", "use a single product")
        asked = (self.num_rows, self.num_cols, self.cache_size, self.num_steps, self.policy)
        return fewest_panels(*asked), tuple(Stop(0, *tile) for tile in best_path(*asked))


@dataclass(frozen=True, kw_only=True)
class StandardOrder:
    """A raster and, for a pair, how its products alternate; both use the same raster."""

    raster: Raster
    merge: Interleave = field(default_factory=Interleave)

    def name(self, *, is_pair: bool) -> str:
        """``hilbert``, or for a pair ``bands1.hilbert``."""
        return f"{self.merge}.{self.raster}" if is_pair else str(self.raster)


_RASTERS_OF_PAIRS = (
    *(Raster(kind=kind) for kind in (RasterKind.ROW, RasterKind.COLUMN, RasterKind.MORTON, RasterKind.HILBERT)),
    *(Raster(kind=RasterKind.SNAKE, width=width) for width in (1, 2)),
)
