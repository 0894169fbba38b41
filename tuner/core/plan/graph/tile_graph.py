"""The tile graph: the tasks of a launch, what they read and write, and the edges where a read overlaps a write.

A task is a tile, or one of the parts into which a tile's steps are split. A part reads what its own steps read. Its
steps are contiguous or strided. The parts of a tile write it together: it is complete once all of them are done.

A task reads in its steps, either after a wait or in band as the elements arrive, or late, after the last step. The kind
of op matters only up to here: orders, proofs and simulations see only tasks, boxes and edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.boxes import Ints, TileSpace
from tuner.core.plan.graph.cover import Waits, waits_for
from tuner.core.plan.graph.edges import Edge, edges_between
from tuner.core.plan.graph.lowering import lower
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling


def part_steps(num_steps: int, part: int, num_parts: int, *, strided: bool = False) -> range:
    """The steps of one of a tile's even parts, which differ by at most one step; no part is empty if there are enough
    steps."""
    if strided:
        return range(part, num_steps, num_parts)
    return range(num_steps * part // num_parts, num_steps * (part + 1) // num_parts)


@dataclass(frozen=True, kw_only=True)
class TaskGraph(ABC):
    """The tiles of the ops that one launch runs: what they read and write, and which tiles read which."""

    #: Ops of this launch, ascending: all of them for a fused launch.
    op_indices: tuple[int, ...]
    #: Whether each of P parts takes every P-th step, from its first one; otherwise its steps are contiguous. Stored in
    #: a plan.
    strided_parts: bool = False
    #: Bit i: op i reads the output of another op of the launch in band. Stored in a plan.
    in_band_ops: int = 0

    @property
    @abstractmethod
    def spaces(self) -> Mapping[int, TileSpace]:
        """Op index -> its tiles, for each op of this launch."""

    @cached_property
    def _in_order(self) -> tuple[TileSpace, ...]:
        return tuple(self.spaces[op] for op in self.op_indices)

    def name_of(self, op_index: int) -> str:
        """The op's name."""
        return self.spaces[op_index].name

    @cached_property
    def grids(self) -> Mapping[int, tuple[int, int]]:
        """Op index -> (tile rows, tile columns)."""
        return {op: self.spaces[op].word_grid for op in self.op_indices}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """One entry per read of an output of this launch."""
        return edges_between(self.op_indices, self._in_order)

    @cached_property
    def streams(self) -> tuple[Edge, ...]:
        """Edges of reads in steps, after a wait or in band."""
        return tuple(edge for edge in self.edges if not edge.is_late)

    @cached_property
    def early_edges(self) -> tuple[Edge, ...]:
        """Edges that are waited for before a step."""
        return tuple(edge for edge in self.streams if not edge.read.in_band)

    @cached_property
    def late_edges(self) -> tuple[Edge, ...]:
        """Edges of reads after the last step."""
        return tuple(edge for edge in self.edges if edge.is_late)

    def waits_for(self, edge: Edge) -> Waits:
        """Which tasks need a wait for their late reads."""
        return waits_for(edge, self.op_indices, self._in_order)

    @cached_property
    def readers(self) -> int:
        """Bit i: op i reads the output of another op of this launch in its steps."""
        return sum(1 << op for op in {edge.consumer for edge in self.streams if edge.producer != edge.consumer})

    @cached_property
    def posting_ops(self) -> frozenset[int]:
        """Ops whose output a task of this launch waits for; only their tasks post."""
        waited_for = {edge.producer for edge in self.early_edges}
        for edge in self.late_edges:
            if edge.producer not in waited_for and self.waits_for(edge) is Waits.ALWAYS:
                waited_for.add(edge.producer)
        return frozenset(waited_for)

    def with_parts(self, *, strided: bool) -> Self:
        """The same tiles, with contiguous or strided parts."""
        return self if strided == self.strided_parts else replace(self, strided_parts=strided)

    def with_in_band(self, ops: int) -> Self:
        """The same tiles, with the ops whose bits are set in `ops` reading in band."""
        return self if ops == self.in_band_ops else replace(self, in_band_ops=ops)

    def num_parts(self, op_index: int) -> int:
        """Maximum parts of a tile of the op; 1 if it is not split."""
        return self.spaces[op_index].num_parts

    def num_tasks_of(self, op_index: int) -> int:
        """Tasks of one op if every tile that can be split is split."""
        return self.spaces[op_index].num_tiles * self.num_parts(op_index)

    @cached_property
    def num_tasks(self) -> int:
        """Tasks of all ops of this launch, each a tile or a part of one, if every tile that can be split is."""
        return sum(map(self.num_tasks_of, self.op_indices))

    @cached_property
    def all_steps(self) -> Ints:
        """[ops] steps of a whole tile of each op, by op index; 0 for the ops of other launches."""
        steps = np.zeros(max(self.op_indices) + 1, dtype=np.int64)
        for op in self.op_indices:
            steps[op] = self.spaces[op].num_steps
        return steps

    def steps(self, op_index: int, part: int = 0, num_parts: int = 1) -> range:
        """The steps of a tile of the op, or of one of its even parts."""
        return part_steps(int(self.all_steps[op_index]), part, num_parts, strided=self.strided_parts)

    def steps_of(self, tasks: npt.NDArray[np.int32]) -> Ints:
        """[tasks, 3] the steps of each task, from its words in a plan: the first step, the stride, and the number."""
        steps = np.empty((len(tasks), 3), dtype=np.int64)
        steps[:, 0], steps[:, 1], steps[:, 2] = 0, 1, self.all_steps[tasks[:, 0]]
        in_parts = np.flatnonzero(tasks[:, 7] > 0)
        steps[in_parts, 0], steps[in_parts, 2] = tasks[in_parts, 9], tasks[in_parts, 10]
        if self.strided_parts:
            steps[in_parts, 1] = tasks[in_parts, 7]
        return steps

    def num_edges(self, tasks: npt.NDArray[np.int32]) -> int:
        """Edges from producer task to consumer task by reads in steps before aggregation, among tasks given as words
        of a plan."""
        count = 0
        for edge in self.streams:
            writers, readers = (tasks[tasks[:, 0] == op] for op in (edge.producer, edge.consumer))
            of_tile = np.bincount(edge.writer.numbers(writers), minlength=edge.writer.num_tiles)
            needs = edge.needs(edge.reader.places(readers), self.steps_of(readers))
            before = np.concatenate(([0], np.cumsum(of_tile[needs.tiles])))
            count += int((before[needs.begin[1:]] - before[needs.begin[:-1]])[needs.of].sum())
        return count


@dataclass(frozen=True, kw_only=True)
class TileGraph(TaskGraph):
    """The tiles of a workload's ops that one launch runs."""

    workload: Workload
    tiling: Tiling

    @property
    def tile_ms(self) -> tuple[int, ...]:
        """Tile height of every op of the workload."""
        return tuple(tile.m for tile in self.tiling.tiles)

    @cached_property
    def spaces(self) -> Mapping[int, TileSpace]:
        """Op index -> its tiles, for each op of this launch."""
        return {op: self._space_of(op) for op in self.op_indices}

    def _space_of(self, op: int) -> TileSpace:
        parts, in_band = self.tiling.num_parts(op), bool(self.in_band_ops >> op & 1)
        tile, chosen = self.tiling.tiles[op], self.tiling.of_kind(op)
        return lower(self.workload.tile_ops[op], tile, chosen, num_parts=parts, in_band=in_band)

    def num_parts(self, op_index: int) -> int:
        """Maximum parts of a tile of the op, of any launch; 1 if it is not split."""
        return self.tiling.num_parts(op_index)

    def num_tasks_of(self, op_index: int) -> int:
        """Tasks of one op if every tile that can be split is split. A search needs thousands of tilings, so this uses
        the op's own number, against which its tiles are checked."""
        tile = self.tiling.tiles[op_index]
        rows, columns = self.workload.tile_ops[op_index].tile_grid(tile.m, tile.n)
        return rows * columns * self.tiling.num_parts(op_index)

    @cached_property
    def all_steps(self) -> Ints:
        """[ops] steps of a whole tile of each op of the workload."""
        num_ops = len(self.workload.tile_ops)
        return np.array([self._space_of(op).num_steps for op in range(num_ops)], dtype=np.int64)


def tile_graph(workload: Workload, tiling: Tiling, op_indices: tuple[int, ...] | None = None) -> TileGraph:
    """The tile graph of the ops that one launch runs; all of them by default. If the kernel reads in band, every op
    that reads another one of the launch does so.

    Raises:
        ValueError: the tiling does not have one tile per op, or an op index is unknown or out of order.
    """
    indices = tuple(range(len(workload.tile_ops))) if op_indices is None else op_indices
    if len(tiling.tiles) != len(workload.tile_ops):
        raise ValueError(f"{len(workload.tile_ops)} ops need {len(workload.tile_ops)} tiles, got {len(tiling.tiles)}")
    if list(indices) != sorted(set(indices) & set(range(len(workload.tile_ops)))) or not indices:
        raise ValueError(f"op indices {indices} are not ascending indices of {len(workload.tile_ops)} ops")
    graph = TileGraph(workload=workload, tiling=tiling, op_indices=indices)
    return graph.with_in_band(graph.readers) if tiling.in_band else graph
