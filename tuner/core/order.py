"""Orders: a walk over each op's tiles, a merge of the walks, signals and thresholds, and the deal to CTAs.

A merge cuts every op into blocks of whole tile rows; a raster walks one block at a time. So two orderings give the
same order exactly where their blocks are the same and their rasters walk the tallest block alike, which is what
`tuner.core.space` uses to refuse second names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tuner.core.gpu import Gpu
from tuner.core.plan import STATIC, TICKET, Plan, Words
from tuner.core.schedule import Assignment, Granularity, Interleave, InterleaveKind, Ordering, Raster, RasterKind
from tuner.core.tiles import TileGraph, row_edges
from tuner.core.workload import Workload

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """Whole tile rows of one op that are walked without a tile of another op in between."""

    op: int
    row_begin: int
    row_end: int


@lru_cache(maxsize=1024)
def row_blocks(
    workload: Workload, tile_ms: tuple[int, ...], op_indices: tuple[int, ...], interleave: Interleave
) -> tuple[Block, ...]:
    """The merge of the ops' tile rows.

    In step s an op that reads nothing of this launch has emitted s * rows of its tile rows (the first such op; the
    others their proportion), then every other op, in topological order, each row whose inputs are complete.
    """
    num_rows = {op: -(-workload.ops[op].m // tile_ms[op]) for op in op_indices}
    edges = {edge.consumer: edge for edge in row_edges(workload, tile_ms, op_indices)}
    lead = op_indices[0]
    band = num_rows[lead] if interleave.kind is InterleaveKind.PRODUCER_FIRST else interleave.rows
    num_steps = max(1, -(-num_rows[lead] // band))
    emitted = dict.fromkeys(op_indices, 0)
    blocks: list[Block] = []
    for step in range(1, num_steps + 1):
        for op in op_indices:
            edge = edges.get(op)
            if edge is not None:
                target = int(np.searchsorted(edge.last, emitted[edge.producer], side="right"))
            else:
                target = min(num_rows[op], -(-step * band * num_rows[op] // num_rows[lead]))
            if target > emitted[op]:
                begin = blocks.pop().row_begin if blocks and blocks[-1].op == op else emitted[op]
                blocks.append(Block(op, begin, target))
                emitted[op] = target
    return tuple(blocks)


def tallest_block(blocks: tuple[Block, ...], op: int) -> int:
    """Tile rows of the op's tallest block."""
    return max(block.row_end - block.row_begin for block in blocks if block.op == op)


def walk(raster: Raster, num_rows: int, num_cols: int) -> tuple[Ints, Ints]:
    """Tile rows and tile columns of a grid in the raster's order, each [num_rows * num_cols]."""
    index = np.arange(num_rows * num_cols, dtype=np.int64)
    row, col = index // num_cols, index % num_cols
    match raster.kind:
        case RasterKind.ROW:
            order = index
        case RasterKind.COLUMN:
            order = np.lexsort((row, col))
        case RasterKind.GROUPED:
            order = np.lexsort((row, col, row // raster.width))
        case RasterKind.PANEL:
            order = np.lexsort((col, row, col // raster.width))
    return row[order], col[order]


def global_order(graph: TileGraph, ordering: Ordering) -> tuple[Ints, Ints, Ints]:
    """Op, tile row and tile column of every task in the global order, each [num_tasks]."""
    parts = []
    walks: dict[tuple[int, int], tuple[Ints, Ints]] = {}  # most blocks of an op are alike
    for block in row_blocks(graph.workload, graph.tile_ms, graph.op_indices, ordering.interleave):
        num_rows = block.row_end - block.row_begin
        if (block.op, num_rows) not in walks:
            walks[block.op, num_rows] = walk(ordering.rasters[block.op], num_rows, graph.grids[block.op][1])
        rows, cols = walks[block.op, num_rows]
        parts.append((np.full(rows.size, block.op, dtype=np.int64), rows + block.row_begin, cols))
    ops, rows, cols = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ops, rows, cols


def make_plan(graph: TileGraph, ordering: Ordering, gpu: Gpu) -> Plan:
    """The plan that runs the graph's tasks in the given order on a persistent grid."""
    ops, rows, cols = global_order(graph, ordering)
    tasks = np.zeros((graph.num_tasks, 8), dtype=np.int32)
    tasks[:, 0], tasks[:, 1], tasks[:, 2], tasks[:, 5] = ops, rows, cols, -1
    per_tile = ordering.granularity is Granularity.TILE
    base: dict[int, int] = {}
    num_signals = 0
    for op in sorted(graph.posting_ops):
        num_rows, num_cols = graph.grids[op]
        mine = ops == op
        base[op] = num_signals
        tasks[mine, 5] = num_signals + (rows[mine] * num_cols + cols[mine] if per_tile else rows[mine])
        num_signals += num_rows * num_cols if per_tile else num_rows
    waits = _intern_waits(graph, tasks, base, per_tile)
    num_ctas = grid_size(graph.num_tasks, ordering, gpu)
    queues = np.zeros(0, dtype=np.int32)
    if ordering.assignment is Assignment.STATIC:
        queue = np.arange(graph.num_tasks) % num_ctas
        tasks = tasks[np.argsort(queue, kind="stable")]
        queues = np.concatenate(([0], np.cumsum(np.bincount(queue, minlength=num_ctas)))).astype(np.int32)
    return Plan(
        tasks=tasks,
        waits=waits,
        queues=queues,
        num_signals=num_signals,
        num_ctas=num_ctas,
        assignment=STATIC if ordering.assignment is Assignment.STATIC else TICKET,
    )


def grid_size(num_tasks: int, ordering: Ordering, gpu: Gpu) -> int:
    """CTAs of the persistent grid."""
    return max(1, min(num_tasks, ordering.ctas_per_sm * (gpu.num_sms - ordering.reserved_sms)))


def _intern_waits(graph: TileGraph, tasks: Words, base: dict[int, int], per_tile: bool) -> Words:
    """Writes each consumer's wait range into `tasks`; rows with the same needs share one record."""
    records: list[npt.NDArray[np.int32]] = []
    num_records = 0
    for edge in graph.edges:
        num_cols = graph.grids[edge.producer][1]
        span, threshold = (num_cols, 1) if per_tile else (1, num_cols)
        needs, record_of_row = np.unique(np.stack((edge.first, edge.last), axis=1), axis=0, return_inverse=True)
        record = np.empty((len(needs), 4), dtype=np.int32)
        record[:, :2] = base[edge.producer] + needs * span
        record[:, 2] = record[:, 3] = threshold
        mine = tasks[:, 0] == edge.consumer
        tasks[mine, 3] = num_records + record_of_row.reshape(-1)[tasks[mine, 1]]
        tasks[mine, 4] = tasks[mine, 3] + 1
        records.append(record)
        num_records += len(needs)
    return np.concatenate(records) if records else np.zeros((0, 4), dtype=np.int32)
