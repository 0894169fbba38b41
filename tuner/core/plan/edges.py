"""Edges of a tile graph: who reads whom between two ops of a launch, and which waits that takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tuner.core.problem.workload import Workload

Ints = npt.NDArray[np.int64]


class EdgeKind(StrEnum):
    """As what a task reads the output of another op."""

    #: As A, before the k-steps that take it.
    OPERAND = "operand"
    #: As the residual of its own tile, in its epilogue.
    RESIDUAL = "residual"
    #: Sums of squares of its tile's rows, in its epilogue.
    NORM = "norm"
    #: A, in band: each element says itself that it is there. The wait stands before the epilogue.
    IN_BAND = "in_band"


@dataclass(frozen=True, kw_only=True, eq=False)
class RowEdges:
    """Which producer tile rows each consumer tile row reads."""

    #: As what.
    kind: EdgeKind = EdgeKind.OPERAND

    #: Op index of the tiles that write.
    producer: int
    #: Op index of the tiles that read.
    consumer: int
    #: [consumer tile rows], non-decreasing: first producer tile row whose region overlaps what the row reads.
    first: Ints
    #: [consumer tile rows], non-decreasing: one past the last such row.
    last: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Needs:
    """What some tasks read of a producer's tile columns, each kind of need once."""

    #: [needs, producer tile columns] the k-step, counted in those of the task, in which the need's tasks first read
    #: something of the column; -1 where they read nothing of it.
    first_reads: Ints
    #: [tasks] the need of each.
    of: Ints

    def columns(self, need: int) -> Ints:
        """The producer's tile columns that the need's tasks read, ascending."""
        return np.flatnonzero(self.first_reads[need] >= 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Edges(RowEdges):
    """Who reads whom between two ops, aggregated: the tasks of a consumer tile row with the same k-steps read the same
    columns of producer tiles."""

    #: Columns of the producer's output, and of a tile of it.
    k: int
    width: int
    #: Depth of a k-step of the consumer.
    depth: int

    def needs(self, steps: Ints) -> Needs:
        """What tasks with these k-steps read, as `TileGraph.steps_of` has them."""
        keys, of = (steps[:, 0] << 40) + (steps[:, 1] << 32) + steps[:, 2], np.zeros(len(steps), dtype=np.int64)
        if (keys[1:] == keys[:-1]).all():  # no tile is split
            keys = keys[:1]
        else:
            keys, of = np.unique(keys, return_inverse=True)
        begin, stride, count = (keys >> 40)[:, None], (keys >> 32 & 0xFF)[:, None], (keys & 0xFFFFFFFF)[:, None]
        column = np.arange(-(-self.k // self.width), dtype=np.int64)
        lowest = column * self.width // self.depth
        highest = (np.minimum((column + 1) * self.width, self.k) - 1) // self.depth
        number = np.maximum(0, -((begin - lowest) // stride))  # of the need's first k-step that is not below `lowest`
        reads: Ints = np.where((number < count) & (begin + number * stride <= highest), number, -1)
        return Needs(first_reads=reads, of=of.reshape(-1))


class Waits(StrEnum):
    """Which tasks need a wait for what they read in their epilogue."""

    #: None: it is further up the chain of what they read as A.
    NEVER = "never"
    #: Parts of tiles: it is what they read as A, and a part waits for the columns of its own k-steps only.
    PARTS = "parts"
    #: All.
    ALWAYS = "always"


@dataclass(frozen=True, kw_only=True, eq=False)
class EpilogueEdges(RowEdges):
    """Who reads what another op of this launch wrote in its epilogue."""

    #: Tile columns of the producer.
    num_cols: int
    #: Columns of a tile of the producer, and of the consumer.
    producer_width: int
    consumer_width: int
    #: Which of the consumer's tasks need a wait for it.
    waits: Waits

    def columns(self, tile_n: Ints) -> tuple[Ints, Ints]:
        """The first of the producer's tile columns that tiles of these columns read, and one past the last."""
        if self.kind is not EdgeKind.RESIDUAL:
            return np.zeros_like(tile_n), np.full_like(tile_n, self.num_cols)
        first = tile_n * self.consumer_width // self.producer_width
        last = -(-(tile_n + 1) * self.consumer_width // self.producer_width)
        return first, np.minimum(last, self.num_cols)

    def is_waited_for(self, num_parts: Ints) -> npt.NDArray[np.bool_]:
        """Whether tasks of tiles in so many parts need a wait for it."""
        return np.asarray(num_parts > 0 if self.waits is Waits.PARTS else num_parts >= 0)


@lru_cache(maxsize=256)
def row_edges(workload: Workload, tile_ms: tuple[int, ...], op_indices: tuple[int, ...]) -> tuple[RowEdges, ...]:
    """Edges of all kinds between the ops `op_indices` for tile heights `tile_ms`, whatever columns are read."""
    edges = []
    reads = [
        (consumer, kind, producer_of(consumer))
        for consumer in op_indices
        for kind, producer_of in (
            (EdgeKind.OPERAND, workload.producer_of),
            (EdgeKind.RESIDUAL, workload.residual_producer_of),
            (EdgeKind.NORM, workload.norm_producer_of),
        )
    ]
    for consumer, kind, producer in reads:
        if producer is None or producer not in op_indices:
            continue  # an input, or written by an earlier launch: stream order gives that edge
        num_rows = workload.tile_ops[consumer].m
        begin = np.arange(0, num_rows, tile_ms[consumer], dtype=np.int64)
        end = np.minimum(begin + tile_ms[consumer], num_rows)
        first, last = begin // tile_ms[producer], -(-end // tile_ms[producer])
        first.setflags(write=False)
        last.setflags(write=False)
        edges.append(RowEdges(kind=kind, producer=producer, consumer=consumer, first=first, last=last))
    return tuple(edges)
