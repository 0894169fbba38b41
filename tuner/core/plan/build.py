"""From a tile graph and an ordering to a plan: the global order, signals and waits, and the assignment to CTAs.

Queues that keep the global order are free of cycles, since that order is a linear extension of the waits. `interleaves`
ensures this for every granularity whose signals cover single tile rows. For batches of rows and barriers, legality
refuses orders without that property. `tuner.core.proof.verify` does not rely on any of this.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.tile_graph import TaskGraph, TileGraph
from tuner.core.plan.order.interleaves import merge_blocks
from tuner.core.plan.order.queues import queue_of_tasks, split_of
from tuner.core.plan.order.rasters import raster_order
from tuner.core.plan.order.split_tasks import parted, streamed
from tuner.core.plan.table.distinct import distinct_rows
from tuner.core.plan.table.header import FIRST_WAVE, STATIC, TICKET
from tuner.core.plan.table.words import Plan, Words
from tuner.core.plan.waiting.signals import Signals, signals_of
from tuner.core.plan.waiting.waits import intern_waits
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    InterleaveKind,
    Ordering,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.tiling import Tiling

Ints = npt.NDArray[np.int64]


def global_order(graph: TileGraph, ordering: Ordering) -> tuple[Ints, Ints, Ints]:
    """Op, tile row and tile column of every tile in the global order, each [tiles]."""
    runs = []
    for op, row_begin, row_end, col_begin, col_end in merge_blocks(
        graph.workload, graph.tiling.tiles, graph.op_indices, ordering.interleave
    ):
        rows, cols = raster_order(ordering.rasters[op], row_end - row_begin, col_end - col_begin)
        runs.append((np.full(rows.size, op, dtype=np.int64), rows + row_begin, cols + col_begin))
    ops, rows, cols = (np.concatenate(column) for column in zip(*runs, strict=True))
    if ordering.interleave.kind is InterleaveKind.PROPORTIONAL:
        mixed = proportional([run[0].size for run in runs])
        ops, rows, cols = ops[mixed], rows[mixed], cols[mixed]
    return ops, rows, cols


def proportional(counts: list[int]) -> Ints:
    """Indices into concatenated sequences of `counts` elements, mixed so that each advances at a constant rate."""
    when = np.concatenate([(2 * np.arange(count, dtype=np.int64) + 1) / (2 * count) for count in counts])
    return np.argsort(when, kind="stable")


def make_plan(graph: TileGraph, ordering: Ordering, gpu: Gpu) -> Plan:
    """The plan that runs the graph's tasks in the given order on a persistent grid.

    If no task is left after the first wave, the wave becomes one queue per CTA.
    """
    graph = graph.with_parts(strided=ordering.split_order is SplitOrder.STRIDED)
    order = global_order(graph, ordering)
    num_ctas = grid_size(graph.num_tasks, ordering, gpu, graph.tiling)
    tasks, queue = tasks_of(graph, order, num_ctas, ordering)
    has_wave = ordering.assignment is Assignment.FIRST_WAVE
    is_static = ordering.assignment.is_static or (has_wave and len(tasks) <= num_ctas)
    plan = plan_of(
        graph,
        tasks,
        ordering.granularity,
        ordering.sync_width,
        num_ctas,
        queue if is_static else None,
        wait_position=ordering.wait_position,
    )
    plan = replace(plan, held_stages=held_stages(graph.tiling, ordering.run_ahead))
    if has_wave and not is_static:
        return replace(plan, assignment=FIRST_WAVE, num_first_tasks=num_ctas)
    return plan


def held_stages(tiling: Tiling, run_ahead: int) -> int:
    """Stages of weights that are not requested before a task's first waits are over."""
    return tiling.stages_ahead - tiling.stages_ahead * run_ahead // 100


def tasks_of(graph: TileGraph, order: tuple[Ints, Ints, Ints], num_ctas: int, ordering: Ordering) -> tuple[Words, Ints]:
    """The tasks of a global order's tiles, whole or in parts, and the queue of each, if there are queues."""
    if ordering.split_tiles is SplitTiles.STREAM:
        return streamed(graph, order, num_ctas, ordering)
    is_split = split_of(order[0], num_ctas, ordering)
    tasks = parted(graph, order, part_major=ordering.part_major, is_split=is_split)
    return tasks, queue_of_tasks(tasks[:, 0], num_ctas, ordering)


def plan_of(
    graph: TaskGraph,
    tasks: Words,
    granularity: Granularity,
    sync_width: int,
    num_ctas: int,
    queue: Ints | None,
    *,
    wait_position: WaitPosition = WaitPosition.TASK,
) -> Plan:
    """The plan of tasks in a global order, without waits and posts: in queues if `queue` assigns them, otherwise by
    tickets. Split tiles have slots in the order of ops, rows, columns."""
    tasks, num_split = tasks.copy(), 0
    if (in_parts := np.flatnonzero(tasks[:, 7])).size:
        split = distinct_rows(tasks[in_parts, :3])
        tasks[in_parts, 8], num_split = split.of, len(split.rows)
    signals: dict[int, Signals] = {}
    num_signals = 0
    for op in sorted(graph.posting_ops):
        signals[op] = signals_of(granularity, sync_width, *graph.grids[op], num_signals)
        num_signals += signals[op].num_signals
        mine = tasks[:, 0] == op
        tasks[mine, 5] = signals[op].post[tasks[mine, 1], tasks[mine, 2]]
    waits = intern_waits(graph, tasks, signals, by_slice=wait_position is WaitPosition.SLICE)
    queues = np.zeros(0, dtype=np.int32)
    if queue is not None:
        tasks = tasks[np.argsort(queue, kind="stable")]
        queues = np.concatenate(([0], np.cumsum(np.bincount(queue, minlength=num_ctas)))).astype(np.int32)
    return Plan(
        tasks=tasks,
        waits=waits,
        queues=queues,
        num_signals=num_signals,
        num_ctas=num_ctas,
        assignment=TICKET if queue is None else STATIC,
        strided_parts=graph.strided_parts,
        num_split_tiles=num_split,
        in_band_ops=graph.in_band_ops,
    )


def grid_size(num_tasks: int, ordering: Ordering, gpu: Gpu, tiling: Tiling) -> int:
    """CTAs, or clusters, of the persistent grid; neighbours have different tasks, and one of them may have none."""
    least = max(1, min(num_tasks, grid_capacity(ordering, gpu, tiling)))
    return -(-least // tiling.neighbours) * tiling.neighbours


def grid_capacity(ordering: Ordering, gpu: Gpu, tiling: Tiling) -> int:
    """CTAs, or clusters, of the persistent grid if there are enough tasks."""
    placed = gpu.num_clusters(tiling.placed_ctas, ordering.reserved_sms)
    return ordering.ctas_per_sm * placed * tiling.neighbours
