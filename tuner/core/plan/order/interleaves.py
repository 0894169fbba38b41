"""Merges: how the ops' tiles alternate, as rectangular blocks of one op each.

Every rule-based merge is a linear extension of the tile graph: a consumer's block comes after the producer rows that it
reads. A raster then orders one block at a time. Two merges give the same order exactly if their blocks are equal, by
which `tuner.core.legal` finds duplicates. (The proportional mix has no blocks, since it mixes single tiles.) A given
order may be arbitrary; the proof decides whether its tasks finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tuner.core.plan.graph.products import product_tile
from tuner.core.plan.graph.row_edges import RowEdges, row_edges
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Interleave, InterleaveKind
from tuner.core.schedule.tiling import Tile


class Block(NamedTuple):
    """A rectangle of one op's tiles that is processed without a tile of another op in between."""

    op: int
    row_begin: int
    row_end: int
    col_begin: int
    col_end: int


class Rows(NamedTuple):
    """Whole tile rows of one op."""

    op: int
    begin: int
    end: int


@lru_cache(maxsize=4096)
def row_steps(
    workload: Workload, tile_ms: tuple[int, ...], op_indices: tuple[int, ...], band: int, lag: int
) -> tuple[tuple[Rows, ...], ...]:
    """The tile rows that each step of a banded merge emits.

    By the end of step s, the first op that reads nothing of this launch has emitted s * band of its tile rows. Other
    such ops have emitted the same proportion of theirs. Every other op, in topological order, has emitted each row
    whose inputs, including those of its epilogue, were complete `lag` steps earlier. So a row never comes before its
    inputs.
    """
    num_rows = {op: workload.tile_ops[op].tile_grid(tile_ms[op], 1)[0] for op in op_indices}
    edges: dict[int, list[RowEdges]] = {}
    for edge in row_edges(workload, tile_ms, op_indices):
        edges.setdefault(edge.consumer, []).append(edge)
    lead = op_indices[0]
    history = [dict.fromkeys(op_indices, 0)]  # rows emitted, after each step
    steps = []
    while history[-1] != num_rows:
        now, step = dict(history[-1]), []
        for op in op_indices:
            if op in edges:
                then = (history[-lag] if lag <= len(history) else history[0]) if lag else now
                target = min(int(np.searchsorted(edge.last, then[edge.producer], side="right")) for edge in edges[op])
            else:
                target = min(num_rows[op], -(-len(history) * band * num_rows[op] // num_rows[lead]))
            if target > now[op]:
                step.append(Rows(op, now[op], target))
                now[op] = target
        history.append(now)
        steps.append(tuple(step))
    return tuple(steps)


def joined(steps: Iterable[Iterable[Rows]]) -> tuple[Rows, ...]:
    """Merges consecutive rows of one op."""
    rows: list[Rows] = []
    for step in steps:
        for new in step:
            begin = rows.pop().begin if rows and rows[-1].op == new.op else new.begin
            rows.append(Rows(new.op, begin, new.end))
    return tuple(rows)


@lru_cache(maxsize=4096)
def merge_blocks(
    workload: Workload, tiles: tuple[Tile, ...], op_indices: tuple[int, ...], interleave: Interleave
) -> tuple[Block, ...]:
    """The blocks of the merged tiles; for the proportional mix, one block per op."""
    tile_ms = tuple(tile.m for tile in tiles)
    grids = {op: workload.tile_ops[op].tile_grid(tiles[op].m, tiles[op].n) for op in op_indices}
    num_rows, num_cols = ({op: grid[axis] for op, grid in grids.items()} for axis in (0, 1))
    match interleave.kind:
        case InterleaveKind.BANDS:
            rows = joined(row_steps(workload, tile_ms, op_indices, interleave.rows, interleave.lag))
            edges = row_edges(workload, tile_ms, op_indices)
            readers = sorted({edge.consumer for edge in edges if not edge.is_late})
            width = {op: -(-num_cols[op] // (interleave.chunks if op in readers else 1)) for op in op_indices}
            first = [Block(op, begin, end, 0, width[op]) for op, begin, end in rows]
            return (*first, *(rest for op in readers for rest in _columns(op, num_rows[op], width[op], num_cols[op])))
        case InterleaveKind.HALF_ROWS:
            return tuple(_halves(row_steps(workload, tile_ms, op_indices, 1, 1), num_cols))
        case InterleaveKind.GIVEN:
            return tuple(_given(interleave.tiles, op_indices))
        case InterleaveKind.LONGEST_FIRST:
            order = longest_first(workload, tiles, op_indices)
        case InterleaveKind.PRODUCER_FIRST | InterleaveKind.PROPORTIONAL:
            order = op_indices
    return tuple(Block(op, 0, num_rows[op], 0, num_cols[op]) for op in order)


def _columns(op: int, num_rows: int, width: int, num_cols: int) -> Iterator[Block]:
    """All tile rows of the op's later column chunks."""
    for begin in range(width, num_cols, width):
        yield Block(op, 0, num_rows, begin, min(begin + width, num_cols))


def _halves(steps: Iterable[Iterable[Rows]], num_cols: dict[int, int]) -> Iterator[Block]:
    """For each step, the left halves of all ops, then the right halves."""
    for step in steps:
        rows = tuple(step)
        for op, begin, end in rows:
            yield Block(op, begin, end, 0, -(-num_cols[op] // 2))
        for op, begin, end in rows:
            if num_cols[op] > 1:
                yield Block(op, begin, end, -(-num_cols[op] // 2), num_cols[op])


def _given(tiles: Iterable[tuple[int, ...]], op_indices: tuple[int, ...]) -> Iterator[Block]:
    """The single tiles of `tiles` that belong to `op_indices`."""
    for op, row, column in tiles:
        if op in op_indices:
            yield Block(op, row, row + 1, column, column + 1)


def longest_first(workload: Workload, tiles: tuple[Tile, ...], op_indices: tuple[int, ...]) -> tuple[int, ...]:
    """The ops by the length of the longest chain of tiles that starts in an op, longest first.

    A producer's chain is longer than its consumer's, so the order is topological.

    Source: Graham, "Bounds on multiprocessing timing anomalies", 1969; Hu, "Parallel sequencing and assembly line
    problems", 1961 (levels).
    """
    length: dict[int, int] = {}
    for op in reversed(op_indices):
        tile = product_tile(workload.tile_ops[op], tiles[op])
        depth = workload.tile_ops[op].num_steps(tile.k) * tile.k
        after = max((length[reader] for reader in length if op in workload.producers_of(reader)), default=0)
        length[op] = tile.m * tile.n * depth + after
    return tuple(sorted(op_indices, key=lambda op: -length[op]))


def block_shapes(blocks: Iterable[Block], op: int) -> frozenset[tuple[int, int]]:
    """The shapes of the op's blocks, in tile rows and tile columns."""
    return frozenset((b.row_end - b.row_begin, b.col_end - b.col_begin) for b in blocks if b.op == op)
