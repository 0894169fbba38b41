"""The tile graph: tasks, the regions that they write and read, and the edges where a read overlaps a write.

What kind of op a tile belongs to ends here: orders, proofs and simulations see tasks, regions and edges only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from tuner.core.schedule import Tile, Tiling
from tuner.core.workload import GemmOp, Workload

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Region:
    """A rectangle of a tensor, half-open, clipped to the tensor."""

    #: An op's name for its output, ``<op>.weight`` for its weights, otherwise an input of the workload.
    tensor: str
    row_begin: int
    row_end: int
    col_begin: int
    col_end: int

    @property
    def num_elements(self) -> int:
        """Elements of the rectangle."""
        return (self.row_end - self.row_begin) * (self.col_end - self.col_begin)


def product_tile(op: GemmOp, tile: Tile) -> Tile:
    """The product that a task computes: as wide as its slice of W, which has two rows a column where it is gated."""
    return replace(tile, n=tile.n * op.rows_per_column)


def product_tiles(workload: Workload, tiling: Tiling) -> tuple[Tile, ...]:
    """The product that a task of each op computes."""
    return tuple(product_tile(op, tile) for op, tile in zip(workload.ops, tiling.tiles, strict=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class Edges:
    """Who reads whom between two ops, aggregated: every tile of a consumer tile row reads the same producer tiles."""

    #: Op index of the tiles that write.
    producer: int
    #: Op index of the tiles that read.
    consumer: int
    #: [consumer tile rows], non-decreasing: first producer tile row whose region overlaps what the row reads.
    first: Ints
    #: [consumer tile rows], non-decreasing: one past the last such row.
    last: Ints


@lru_cache(maxsize=256)
def row_edges(workload: Workload, tile_ms: tuple[int, ...], op_indices: tuple[int, ...]) -> tuple[Edges, ...]:
    """Edges between the ops `op_indices` for tile heights `tile_ms`; a consumer tile reads all columns of its rows."""
    edges = []
    for consumer in op_indices:
        producer = workload.producer_of(consumer)
        if producer is None or producer not in op_indices:
            continue  # an input, or written by an earlier launch: stream order gives that edge
        num_rows = workload.ops[consumer].m
        begin = np.arange(0, num_rows, tile_ms[consumer], dtype=np.int64)
        end = np.minimum(begin + tile_ms[consumer], num_rows)
        first, last = begin // tile_ms[producer], -(-end // tile_ms[producer])
        first.setflags(write=False)
        last.setflags(write=False)
        edges.append(Edges(producer=producer, consumer=consumer, first=first, last=last))
    return tuple(edges)


@dataclass(frozen=True, kw_only=True)
class TileGraph:
    """The tiles of the ops that one launch runs, and who reads whom."""

    workload: Workload
    tiling: Tiling
    #: Ops of this launch, ascending: all of them for a fused launch.
    op_indices: tuple[int, ...]

    @property
    def tile_ms(self) -> tuple[int, ...]:
        """Tile height of every op of the workload."""
        return tuple(tile.m for tile in self.tiling.tiles)

    @cached_property
    def grids(self) -> Mapping[int, tuple[int, int]]:
        """Op index -> (tile rows, tile columns)."""
        grids = {}
        for index in self.op_indices:
            op, tile = self.workload.ops[index], self.tiling.tiles[index]
            grids[index] = (-(-op.m // tile.m), -(-op.n // tile.n))
        return grids

    @cached_property
    def edges(self) -> tuple[Edges, ...]:
        """One entry per op that reads the output of another op of this launch."""
        return row_edges(self.workload, self.tile_ms, self.op_indices)

    @cached_property
    def num_tasks(self) -> int:
        """Tiles of all ops of this launch."""
        return sum(rows * cols for rows, cols in self.grids.values())

    @cached_property
    def num_edges(self) -> int:
        """Producer tile -> consumer tile edges before aggregation."""
        return sum(
            int((edge.last - edge.first).sum()) * self.grids[edge.producer][1] * self.grids[edge.consumer][1]
            for edge in self.edges
        )

    @cached_property
    def posting_ops(self) -> frozenset[int]:
        """Ops with a consumer inside this launch; only their tasks post."""
        return frozenset(edge.producer for edge in self.edges)

    def edges_into(self, op_index: int) -> Edges | None:
        """The edges by which op `op_index` reads another op of this launch, or None."""
        return next((edge for edge in self.edges if edge.consumer == op_index), None)

    def writes(self, op_index: int, tile_m: int, tile_n: int) -> Region:
        """The region of the op's output that a tile writes."""
        op, tile = self.workload.ops[op_index], self.tiling.tiles[op_index]
        return Region(
            tensor=op.name,
            row_begin=tile_m * tile.m,
            row_end=min((tile_m + 1) * tile.m, op.m),
            col_begin=tile_n * tile.n,
            col_end=min((tile_n + 1) * tile.n, op.n),
        )

    def reads(self, op_index: int, tile_m: int, tile_n: int) -> tuple[Region, ...]:
        """The regions of A [m, k] and of the weights [n, k] that a tile reads: of gate and up where it is gated; and
        of the residual [m, n], where there is one."""
        op, out = self.workload.ops[op_index], self.writes(op_index, tile_m, tile_n)
        rows = Region(tensor=op.source, row_begin=out.row_begin, row_end=out.row_end, col_begin=0, col_end=op.k)
        weights = tuple(
            Region(
                tensor=f"{op.name}.weight",
                row_begin=half * op.n + out.col_begin,
                row_end=half * op.n + out.col_end,
                col_begin=0,
                col_end=op.k,
            )
            for half in range(op.rows_per_column)
        )
        residual = (replace(out, tensor=f"{op.name}.residual"),) if op.residual else ()
        return rows, *weights, *residual


def tile_graph(workload: Workload, tiling: Tiling, op_indices: tuple[int, ...] | None = None) -> TileGraph:
    """The tile graph of the ops that one launch runs; all of them by default.

    Raises:
        ValueError: the tiling has not one tile per op, or an op index is unknown or out of order.
    """
    indices = tuple(range(len(workload.ops))) if op_indices is None else op_indices
    if len(tiling.tiles) != len(workload.ops):
        raise ValueError(f"{len(workload.ops)} ops need {len(workload.ops)} tiles, got {len(tiling.tiles)}")
    if list(indices) != sorted(set(indices) & set(range(len(workload.ops)))) or not indices:
        raise ValueError(f"op indices {indices} are not ascending indices of {len(workload.ops)} ops")
    return TileGraph(workload=workload, tiling=tiling, op_indices=indices)
