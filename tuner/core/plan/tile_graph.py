"""The tile graph: tasks, the regions that they write and read, and the edges where a read overlaps a write.

A task is a tile, or one of the parts into which a tile's k-steps are split. A part reads the columns of A and of the
weights that its own k-steps take. Its k-steps are in a row or not. The parts of a tile write it together: it is there
once all of them are done.

A task reads the output of another op in up to three ways: as A, k-step by k-step; as the residual; and as the norm of
its rows, of which every tile of these rows has a share. The last two are read in its epilogue, when all k-steps are
done. A is read behind a wait or, in band, as its elements come: then the wait stands in front of the epilogue, too.

What kind of op a tile belongs to ends here: orders, proofs and simulations see tasks, regions and edges only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tuner.core.plan.edges import EdgeKind, Edges, EpilogueEdges, Ints, RowEdges, Waits, row_edges
from tuner.core.problem.workload import GemmOp, Workload
from tuner.core.schedule.tiling import Tile, Tiling


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
    return Tile(m=tile.m, n=tile.n * op.rows_per_column, k=tile.k) if op.rows_per_column > 1 else tile


def product_tiles(workload: Workload, tiling: Tiling) -> tuple[Tile, ...]:
    """The product that a task of each op computes."""
    return tuple(product_tile(op, tile) for op, tile in zip(workload.tile_ops, tiling.tiles, strict=True))


def part_steps(num_steps: int, part: int, num_parts: int, *, strided: bool = False) -> range:
    """The k-steps of one part, of all that a tile has, where the parts are even: they differ by one step at most, and
    none is empty if there are enough."""
    if strided:
        return range(part, num_steps, num_parts)
    return range(num_steps * part // num_parts, num_steps * (part + 1) // num_parts)


@dataclass(frozen=True, kw_only=True)
class TileGraph:
    """The tiles of the ops that one launch runs, and who reads whom."""

    workload: Workload
    tiling: Tiling
    #: Ops of this launch, ascending: all of them for a fused launch.
    op_indices: tuple[int, ...]
    #: Whether a part of P takes every P-th k-step from its first one on; else they are in a row. A plan says it.
    strided_parts: bool = False
    #: Bit i: op i reads A in band. A plan says it.
    in_band_ops: int = 0

    @property
    def tile_ms(self) -> tuple[int, ...]:
        """Tile height of every op of the workload."""
        return tuple(tile.m for tile in self.tiling.tiles)

    @cached_property
    def grids(self) -> Mapping[int, tuple[int, int]]:
        """Op index -> (tile rows, tile columns)."""
        grids = {}
        for index in self.op_indices:
            op, tile = self.workload.tile_ops[index], self.tiling.tiles[index]
            grids[index] = (-(-op.m // tile.m), -(-op.n // tile.n))
        return grids

    @cached_property
    def edges(self) -> tuple[Edges, ...]:
        """One entry per op that reads the output of another op of this launch as A, and not in band."""
        return tuple(edge for edge in self.operand_edges if not self.is_in_band(edge.consumer))

    def is_in_band(self, op_index: int) -> bool:
        """Whether the op reads A in band."""
        return bool(self.in_band_ops >> op_index & 1)

    @cached_property
    def readers(self) -> int:
        """Bit i: op i reads the output of another op of this launch as A."""
        return sum(1 << edge.consumer for edge in self.operand_edges)

    @cached_property
    def operand_edges(self) -> tuple[Edges, ...]:
        """One entry per op that reads the output of another op of this launch as A."""
        return tuple(
            Edges(
                producer=edge.producer,
                consumer=edge.consumer,
                first=edge.first,
                last=edge.last,
                k=self.workload.tile_ops[edge.consumer].k,
                width=self.tiling.tiles[edge.producer].n,
                depth=self.tiling.tiles[edge.consumer].k,
            )
            for edge in row_edges(self.workload, self.tile_ms, self.op_indices)
            if edge.kind is EdgeKind.OPERAND
        )

    @cached_property
    def epilogue_edges(self) -> tuple[EpilogueEdges, ...]:
        """One entry per residual and per norm that an op takes from another op of this launch, and per op that reads
        such an output in band: that is waited for where a norm is, and covers as many columns."""
        return tuple(
            EpilogueEdges(
                kind=EdgeKind.IN_BAND if edge.kind is EdgeKind.OPERAND else edge.kind,
                producer=edge.producer,
                consumer=edge.consumer,
                first=edge.first,
                last=edge.last,
                num_cols=self.grids[edge.producer][1],
                producer_width=self.tiling.tiles[edge.producer].n,
                consumer_width=self.tiling.tiles[edge.consumer].n,
                waits=self._waits_for(edge),
            )
            for edge in row_edges(self.workload, self.tile_ms, self.op_indices)
            if edge.kind is not EdgeKind.OPERAND or self.is_in_band(edge.consumer)
        )

    def _waits_for(self, edge: RowEdges) -> Waits:
        """Which tasks of an op need a wait for what they read in their epilogue, beside those for A.

        A tile reads all columns of A, and is there only once what it reads is. So whoever waits for a tile of A waits
        for all that lies further up. That covers its own rows, since each tile covers those that it reads.
        """
        operand_of = {one.consumer: one.producer for one in self.operand_edges}
        above = operand_of.get(edge.consumer)
        if above == edge.producer:
            return Waits.ALWAYS if edge.kind is EdgeKind.OPERAND else Waits.PARTS
        while above is not None:
            above = operand_of.get(above)
            if above == edge.producer:
                return Waits.NEVER
        return Waits.ALWAYS

    def with_parts(self, *, strided: bool) -> TileGraph:
        """The same tiles, whose parts take their k-steps so."""
        return self if strided == self.strided_parts else replace(self, strided_parts=strided)

    def with_in_band(self, ops: int) -> TileGraph:
        """The same tiles; the ops of these bits read A in band."""
        return self if ops == self.in_band_ops else replace(self, in_band_ops=ops)

    def num_parts(self, op_index: int) -> int:
        """Most parts of a tile of the op; 1 where it is not split."""
        return self.tiling.num_parts(op_index)

    def num_tasks_of(self, op_index: int) -> int:
        """Tasks of one op, where all its tiles are split that may be."""
        rows, cols = self.grids[op_index]
        return rows * cols * self.num_parts(op_index)

    @cached_property
    def num_tasks(self) -> int:
        """Tasks of all ops of this launch, a tile each or a part of one, where all tiles are split that may be."""
        return sum(map(self.num_tasks_of, self.op_indices))

    @cached_property
    def posting_ops(self) -> frozenset[int]:
        """Ops for whose output a task of this launch waits; only their tasks post."""
        waited_for = {edge.producer for edge in self.epilogue_edges if edge.waits is Waits.ALWAYS}
        return frozenset(edge.producer for edge in self.edges) | waited_for

    def edges_into(self, op_index: int) -> Edges | None:
        """The edges by which op `op_index` reads another op of this launch as A, or None."""
        return next((edge for edge in self.operand_edges if edge.consumer == op_index), None)

    def writes(self, op_index: int, tile_m: int, tile_n: int) -> Region:
        """The region of the op's output that a tile writes."""
        op, tile = self.workload.tile_ops[op_index], self.tiling.tiles[op_index]
        return Region(
            tensor=op.name,
            row_begin=tile_m * tile.m,
            row_end=min((tile_m + 1) * tile.m, op.m),
            col_begin=tile_n * tile.n,
            col_end=min((tile_n + 1) * tile.n, op.n),
        )

    @cached_property
    def all_steps(self) -> Ints:
        """[ops] k-steps of a whole tile of each op of the workload."""
        shapes = zip(self.workload.tile_ops, self.tiling.tiles, strict=True)
        return np.array([-(-op.k // tile.k) for op, tile in shapes], dtype=np.int64)

    def steps(self, op_index: int, part: int = 0, num_parts: int = 1) -> range:
        """The k-steps of a tile of the op, or of one of its parts where these are even, of all that the op's tiles
        have."""
        return part_steps(int(self.all_steps[op_index]), part, num_parts, strided=self.strided_parts)

    def steps_of(self, tasks: npt.NDArray[np.int32]) -> Ints:
        """[tasks, 3] the k-steps of each, by its words as a plan has them: the first, the stride, and how many."""
        steps = np.empty((len(tasks), 3), dtype=np.int64)
        steps[:, 0], steps[:, 1], steps[:, 2] = 0, 1, self.all_steps[tasks[:, 0]]
        in_parts = np.flatnonzero(tasks[:, 7] > 0)
        steps[in_parts, 0], steps[in_parts, 2] = tasks[in_parts, 9], tasks[in_parts, 10]
        if self.strided_parts:
            steps[in_parts, 1] = tasks[in_parts, 7]
        return steps

    def num_edges(self, tasks: npt.NDArray[np.int32]) -> int:
        """Producer task -> consumer task edges by A before aggregation, among tasks with words as a plan has them."""
        count = 0
        for edge in self.operand_edges:
            writers, readers = (tasks[tasks[:, 0] == op] for op in (edge.producer, edge.consumer))
            rows, cols = self.grids[edge.producer]
            above = np.zeros((rows + 1, cols), dtype=np.int64)  # tasks of each column, in the rows above
            np.add.at(above, (writers[:, 1] + 1, writers[:, 2]), 1)
            above = above.cumsum(axis=0)
            needs = edge.needs(self.steps_of(readers))
            read = np.stack((readers[:, 1], needs.of), axis=1)
            (row, need), times = (found.T for found in np.unique(read, axis=0, return_counts=True))
            each = (above[edge.last[row]] - above[edge.first[row]]) * (needs.first_reads[need] >= 0)
            count += int(each.sum(axis=1) @ times)
        return count

    def reads(self, op_index: int, tile_m: int, tile_n: int, step: int | None = None) -> tuple[Region, ...]:
        """The regions of A [m, k] and of the weights [n, k] that a tile, or one of its k-steps, reads. A gated op has
        regions of gate and up. Where there is a residual [m, n], its region is among them."""
        op, out = self.workload.tile_ops[op_index], self.writes(op_index, tile_m, tile_n)
        depth = self.tiling.tiles[op_index].k
        begin, end = (0, op.k) if step is None else (depth * step, min(depth * (step + 1), op.k))
        rows = Region(tensor=op.source, row_begin=out.row_begin, row_end=out.row_end, col_begin=begin, col_end=end)
        weights = tuple(
            Region(
                tensor=f"{op.name}.weight",
                row_begin=half * op.n + out.col_begin,
                row_end=half * op.n + out.col_end,
                col_begin=begin,
                col_end=end,
            )
            for half in range(op.rows_per_column)
        )
        residual = (replace(out, tensor=op.residual_source or f"{op.name}.residual"),) if op.residual else ()
        return rows, *weights, *residual


def tile_graph(workload: Workload, tiling: Tiling, op_indices: tuple[int, ...] | None = None) -> TileGraph:
    """The tile graph of the ops that one launch runs; all of them by default. Where the kernel reads in band, every op
    does that reads another one of the launch.

    Raises:
        ValueError: the tiling has not one tile per op, or an op index is unknown or out of order.
    """
    indices = tuple(range(len(workload.tile_ops))) if op_indices is None else op_indices
    if len(tiling.tiles) != len(workload.tile_ops):
        raise ValueError(f"{len(workload.tile_ops)} ops need {len(workload.tile_ops)} tiles, got {len(tiling.tiles)}")
    if list(indices) != sorted(set(indices) & set(range(len(workload.tile_ops)))) or not indices:
        raise ValueError(f"op indices {indices} are not ascending indices of {len(workload.tile_ops)} ops")
    graph = TileGraph(workload=workload, tiling=tiling, op_indices=indices)
    return graph.with_in_band(graph.readers) if tiling.in_band else graph
