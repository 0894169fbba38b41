"""Two launches side by side on two streams, the second waiting tile by tile for the first: plans, and both as one.

Each launch has words of its own, in which signals have the same numbers. `joined` reads the words of both as one plan
on the CTAs of both, which is what `tuner.core.verify` proves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tuner.core.gpu import Gpu
from tuner.core.order import Ints, deal, global_order, grid_capacity, grid_size, held_stages, parted, plan_of, tail_of
from tuner.core.plan import STATIC, Plan
from tuner.core.schedule import Interleave, Ordering, SplitOrder, SplitTiles
from tuner.core.tiles import TileGraph
from tuner.errors import PlanError


def make_parts(graph: TileGraph, ordering: Ordering, gpu: Gpu) -> tuple[Plan, Plan]:
    """The plans of the first and of the second op of a pair, each on a grid and in queues of its own."""
    ordering = replace(ordering, interleave=Interleave(), partition=0)
    graph = graph.with_parts(strided=ordering.split_order is SplitOrder.STRIDED)
    tiles, is_split = global_order(graph, ordering), None
    if ordering.split_tiles is SplitTiles.TAIL:  # each launch has waves of its own
        most = grid_capacity(ordering, gpu, graph.tiling.cluster_size)
        is_split = np.concatenate([tail_of(tiles[0][tiles[0] == op], most) for op in graph.op_indices])
    order = parted(graph, tiles, part_major=ordering.part_major, is_split=is_split)
    is_first = order[0] == graph.op_indices[0]
    sizes = [grid_size(int(mine.sum()), ordering, gpu, graph.tiling.cluster_size) for mine in (is_first, ~is_first)]
    queue: Ints = np.empty(is_first.size, dtype=np.int64)
    queue[is_first] = deal(order[0][is_first], sizes[0], ordering)
    queue[~is_first] = sizes[0] + deal(order[0][~is_first], sizes[1], ordering)
    both = plan_of(
        graph,
        order,
        ordering.granularity,
        ordering.sync_width,
        sum(sizes),
        queue,
        wait_position=ordering.wait_position,
    )
    both = replace(both, held_stages=held_stages(graph.tiling, ordering.run_ahead))
    return _part(both, 0, sizes[0]), _part(both, sizes[0], sum(sizes))


def _part(both: Plan, first_cta: int, end_cta: int) -> Plan:
    """The queues of some CTAs as a plan of their own, with all signals and all waits."""
    begin, end = both.queues[first_cta], both.queues[end_cta]
    tasks = both.tasks[begin:end].copy()
    has_waits = bool((tasks[:, 4] > tasks[:, 3]).any())
    if not has_waits:
        tasks[:, 3:5] = 0
    return Plan(
        tasks=tasks,
        waits=both.waits if has_waits else both.waits[:0],
        queues=both.queues[first_cta : end_cta + 1] - begin,
        num_signals=both.num_signals,
        num_ctas=end_cta - first_cta,
        assignment=STATIC,
        held_stages=both.held_stages,
        strided_parts=both.strided_parts,
        num_split_tiles=both.num_split_tiles,
    )


def joined(first: Plan, second: Plan) -> Plan:
    """Both launches as one plan: the CTAs of the first, then those of the second.

    Raises:
        PlanError: they cannot share signals.
    """
    if (first.assignment, second.assignment) != (STATIC, STATIC):
        raise PlanError("launches that share signals need queues", "a plan of the two draws tickets")
    if first.num_signals != second.num_signals:
        counts = f"the first has {first.num_signals}, the second {second.num_signals}"
        raise PlanError("launches that share signals must agree on their number", counts)
    if first.strided_parts != second.strided_parts:
        raise PlanError("launches that share signals must split alike", "the parts of one alone are strided")
    if first.num_split_tiles != second.num_split_tiles:
        counts = f"the first has {first.num_split_tiles}, the second {second.num_split_tiles}"
        raise PlanError("launches that share a workspace must agree on its slots", counts)
    later = second.tasks.copy()
    later[:, 3:5] += len(first.waits)
    return Plan(
        tasks=np.concatenate((first.tasks, later)),
        waits=np.concatenate((first.waits, second.waits)),
        queues=np.concatenate((first.queues[:-1], second.queues + first.num_tasks)),
        num_signals=first.num_signals,
        num_ctas=first.num_ctas + second.num_ctas,
        assignment=STATIC,
        strided_parts=first.strided_parts,
        num_split_tiles=first.num_split_tiles,
    )
