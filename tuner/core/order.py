"""From a tile graph and an ordering to a plan: the global order, signals and waits, and the deal to CTAs.

Any deal that keeps the global order inside each queue is free of cycles, since that order is a linear extension of the
waits: `tuner.core.merge` makes it one for every granularity whose signals stand for single tile rows, and legality
refuses a batch of rows or a barrier where it is not. `tuner.core.verify` trusts none of this.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tuner.core.gpu import Gpu
from tuner.core.merge import merge_blocks
from tuner.core.plan import FIRST_WAVE, STATIC, STEALING, TASK_FIELDS, TICKET, WAIT_FIELDS, Plan, Words
from tuner.core.rasters import walk
from tuner.core.schedule import Assignment, Granularity, InterleaveKind, Ordering, SplitOrder, SplitTiles, WaitPosition
from tuner.core.signals import Signals, signals_of
from tuner.core.tiles import Edges, TileGraph
from tuner.core.tiling import Tiling

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: A partition is given in these.
PARTITION_PARTS = 8


def global_order(graph: TileGraph, ordering: Ordering) -> tuple[Ints, Ints, Ints]:
    """Op, tile row and tile column of every tile in the global order, each [tiles]."""
    parts = []
    for op, row_begin, row_end, col_begin, col_end in merge_blocks(
        graph.workload, graph.tiling.tiles, graph.op_indices, ordering.interleave
    ):
        rows, cols = walk(ordering.rasters[op], row_end - row_begin, col_end - col_begin)
        parts.append((np.full(rows.size, op, dtype=np.int64), rows + row_begin, cols + col_begin))
    ops, rows, cols = (np.concatenate(column) for column in zip(*parts, strict=True))
    if ordering.interleave.kind is InterleaveKind.PROPORTIONAL:
        mixed = proportional([part[0].size for part in parts])
        ops, rows, cols = ops[mixed], rows[mixed], cols[mixed]
    return ops, rows, cols


def proportional(counts: list[int]) -> Ints:
    """Indices into the concatenated sequences of such lengths, mixed so that each advances at an even rate."""
    when = np.concatenate([(2 * np.arange(count, dtype=np.int64) + 1) / (2 * count) for count in counts])
    return np.argsort(when, kind="stable")


def tail_of(ops: Ints, num_ctas: int, partition: int = 0) -> Flags:
    """[tiles] whether each tile of the global order, given the op of each, is of the last, incomplete wave: what is
    left when whole waves of the grid, or of each side of a partition, are dealt; all of them where no wave is whole."""
    is_tail = np.zeros(ops.size, dtype=np.bool_)
    is_first = ops == ops.min()
    lists = [(np.arange(ops.size), num_ctas)]
    if partition and num_ctas > 1 and not is_first.all():
        num_first = num_first_ctas(num_ctas, partition)
        lists = [(np.flatnonzero(is_first), num_first), (np.flatnonzero(~is_first), num_ctas - num_first)]
    for tiles, size in lists:
        is_tail[tiles[tiles.size // size * size :]] = True
    return is_tail


def parted(
    graph: TileGraph, order: tuple[Ints, Ints, Ints], *, part_major: bool = False, is_split: Flags | None = None
) -> tuple[Ints, Ints, Ints, Ints]:
    """Op, tile row, tile column and part (-1 for a whole tile) of every task: the parts of a tile follow each other,
    where the tile stood; or, part by part, all tiles of a run of tasks of one op, where the run stood. `is_split` tells
    which tiles are split, where not all are whose op has parts."""
    repeats = parts_of(graph)[order[0]]
    if is_split is not None:
        repeats = np.where(is_split, repeats, 1)
    ops, rows, cols = (np.repeat(column, repeats) for column in order)
    parts = np.arange(ops.size, dtype=np.int64) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    parts[np.repeat(repeats == 1, repeats)] = -1
    if not part_major:
        return ops, rows, cols, parts
    runs = np.concatenate(([0], np.cumsum(np.diff(ops) != 0)))
    sweep = np.lexsort((parts, runs))  # stable: tiles keep their order
    return ops[sweep], rows[sweep], cols[sweep], parts[sweep]


def parts_of(graph: TileGraph) -> Ints:
    """[ops] parts of a tile that is split, by op index; 1 for the ops of other launches."""
    parts = np.ones(max(graph.op_indices) + 1, dtype=np.int64)
    for op in graph.op_indices:
        parts[op] = graph.num_parts(op)
    return parts


def make_plan(graph: TileGraph, ordering: Ordering, gpu: Gpu) -> Plan:
    """The plan that runs the graph's tasks in the given order on a persistent grid.

    Where no task is left behind a first wave, it is a queue for each CTA. CTAs steal between the first op's tasks and
    those of all others; one op alone, or one CTA, is left with tickets. The first op waits for nobody, so its tasks may
    come before all others: the table stays a linear extension.
    """
    graph = graph.with_parts(strided=ordering.split_order is SplitOrder.STRIDED)
    order = global_order(graph, ordering)
    num_ctas = grid_size(graph.num_tasks, ordering, gpu, graph.tiling.cluster_size)
    is_split = tail_of(order[0], num_ctas, ordering.partition) if ordering.split_tiles is SplitTiles.TAIL else None
    ops, rows, cols, parts = parted(graph, order, part_major=ordering.part_major, is_split=is_split)
    is_first = ops == ops.min()
    steals = ordering.assignment is Assignment.STEALING and num_ctas > 1 and not is_first.all()
    if steals:
        sides = np.argsort(~is_first, kind="stable")
        ops, rows, cols, parts = ops[sides], rows[sides], cols[sides], parts[sides]
    has_wave = ordering.assignment is Assignment.FIRST_WAVE
    is_static = ordering.assignment.is_static or (has_wave and ops.size <= num_ctas)
    queue = deal(ops, num_ctas, ordering) if is_static else None
    plan = plan_of(
        graph,
        (ops, rows, cols, parts),
        ordering.granularity,
        ordering.sync_width,
        num_ctas,
        queue,
        wait_position=ordering.wait_position,
    )
    plan = replace(plan, held_stages=held_stages(graph.tiling, ordering.run_ahead))
    if has_wave and not is_static:
        return replace(plan, assignment=FIRST_WAVE, num_first_tasks=num_ctas)
    if not steals:
        return plan
    return replace(
        plan,
        assignment=STEALING,
        num_first_tasks=int(is_first.sum()),
        num_first_ctas=num_first_ctas(num_ctas, ordering.partition),
    )


def held_stages(tiling: Tiling, run_ahead: int) -> int:
    """Stages of weights that stay unrequested until a task's first waits are over."""
    return tiling.stages_ahead - tiling.stages_ahead * run_ahead // 100


def plan_of(
    graph: TileGraph,
    order: tuple[Ints, Ints, Ints, Ints],
    granularity: Granularity,
    sync_width: int,
    num_ctas: int,
    queue: Ints | None,
    *,
    wait_position: WaitPosition = WaitPosition.TASK,
) -> Plan:
    """The plan of a global order (ops, tile rows, tile columns, parts, which are -1 for whole tiles): in queues where
    `queue` gives each task's, else by tickets. Tiles that are split have slots in the order of ops, rows, columns."""
    ops, rows, cols, parts = order
    tasks = np.zeros((ops.size, TASK_FIELDS), dtype=np.int32)
    tasks[:, 0], tasks[:, 1], tasks[:, 2], tasks[:, 5], tasks[:, 6] = ops, rows, cols, -1, np.maximum(parts, 0)
    num_split = 0
    if (in_parts := np.flatnonzero(parts >= 0)).size:
        tasks[in_parts, 7] = parts_of(graph)[ops[in_parts]]
        split, slots = np.unique(tasks[in_parts, :3], axis=0, return_inverse=True)
        tasks[in_parts, 8], num_split = slots.reshape(-1), len(split)
    signals: dict[int, Signals] = {}
    num_signals = 0
    for op in sorted(graph.posting_ops):
        signals[op] = signals_of(granularity, sync_width, *graph.grids[op], num_signals)
        num_signals += signals[op].num_signals
        mine = ops == op
        tasks[mine, 5] = signals[op].post[rows[mine], cols[mine]]
    waits = _intern_waits(graph, tasks, signals, by_slice=wait_position is WaitPosition.SLICE)
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
    )


def grid_size(num_tasks: int, ordering: Ordering, gpu: Gpu, cluster_size: int) -> int:
    """CTAs of the persistent grid, or its clusters: a task has one to itself."""
    return max(1, min(num_tasks, grid_capacity(ordering, gpu, cluster_size)))


def grid_capacity(ordering: Ordering, gpu: Gpu, cluster_size: int) -> int:
    """CTAs of the persistent grid, or its clusters, where there are tasks enough."""
    return ordering.ctas_per_sm * gpu.num_clusters(cluster_size, ordering.reserved_sms)


def num_first_ctas(num_ctas: int, partition: int) -> int:
    """CTAs of a partitioned grid that run the first op's tiles, or begin with them."""
    return max(1, min(num_ctas - 1, round(num_ctas * partition / PARTITION_PARTS)))


def deal(ops: Ints, num_ctas: int, ordering: Ordering) -> Ints:
    """[num_tasks] the queue of each task of the global order."""
    index = np.arange(ops.size, dtype=np.int64)
    is_first = ops == ops.min()
    if ordering.partition and num_ctas > 1 and not is_first.all():
        num_first = num_first_ctas(num_ctas, ordering.partition)
        rank = np.where(is_first, np.cumsum(is_first), np.cumsum(~is_first)) - 1
        return np.where(is_first, rank % num_first, num_first + rank % (num_ctas - num_first))
    if ordering.assignment is Assignment.SHARES:
        return index * num_ctas // ops.size
    return index % num_ctas


def _intern_waits(graph: TileGraph, tasks: Words, signals: dict[int, Signals], *, by_slice: bool) -> Words:
    """Writes each consumer's wait range into `tasks`; tasks with the same needs share their records."""
    records: list[tuple[int, int, int, int, int]] = []
    for edge in graph.edges:
        mine = tasks[:, 0] == edge.consumer
        need = edge.need(tasks[mine, 6], tasks[mine, 7])
        rows = tasks[mine, 1]
        read = np.stack((edge.first[rows], edge.last[rows], need), axis=1)
        rectangles, rectangle_of = np.unique(read, axis=0, return_inverse=True)
        begin, end = np.empty((2, len(rectangles)), dtype=np.int32)
        shared: dict[tuple[tuple[int, int, int, int, int], ...], tuple[int, int]] = {}
        for number, (first, last, part) in enumerate(rectangles.tolist()):
            waits = tuple(_waits_of(edge, signals[edge.producer], first, last, part, by_slice=by_slice))
            if waits not in shared:
                shared[waits] = len(records), len(records) + len(waits)
                records.extend(waits)
            begin[number], end[number] = shared[waits]
        rectangle_of = rectangle_of.reshape(-1)
        tasks[mine, 3], tasks[mine, 4] = begin[rectangle_of], end[rectangle_of]
    return np.array(records, dtype=np.int32).reshape(-1, WAIT_FIELDS)


def _waits_of(
    edge: Edges, signals: Signals, first: int, last: int, need: int, *, by_slice: bool
) -> list[tuple[int, int, int, int, int]]:
    """The wait records of the tasks that read producer tile rows [first, last) and the columns of a need."""
    cols = edge.columns(need)
    return signals.waits_for(first, last, cols, edge.first_reads[need, cols] if by_slice else None)
