"""Two concurrent launches on two streams, where the second waits for the first tile by tile: their plans, and the
plan that joins both.

Each launch has its own words, with the same signal numbers. `joined` combines the words of both into one plan on the
CTAs of both, which `tuner.core.proof.verify` proves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tuner.core.plan.build import Ints, global_order, grid_size, held_stages, plan_of, tasks_of
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.plan.table.header import STATIC
from tuner.core.plan.table.words import Plan, Words
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.ordering import Ordering, SplitOrder
from tuner.errors import LivenessError, WordError


def make_paired_plans(graph: TileGraph, ordering: Ordering, gpu: Gpu) -> tuple[Plan, Plan]:
    """The plans of the first and second op of a pair, each with its own grid and queues."""
    ordering = replace(ordering, interleave=ordering.interleave.apart, partition=0)
    graph = graph.with_parts(strided=ordering.split_order is SplitOrder.STRIDED).with_in_band(0)
    launches: list[tuple[Words, Ints]] = []
    sizes: list[int] = []
    for op in graph.op_indices:
        alone = replace(graph, op_indices=(op,))
        num_ctas = grid_size(alone.num_tasks, ordering, gpu, graph.tiling)
        tasks, queue = tasks_of(alone, global_order(alone, ordering), num_ctas, ordering)
        launches.append((tasks, sum(sizes) + queue))
        sizes.append(num_ctas)
    tasks, queue = (np.concatenate(column) for column in zip(*launches, strict=True))
    both = plan_of(
        graph,
        tasks,
        ordering.granularity,
        ordering.sync_width,
        sum(sizes),
        queue,
        wait_position=ordering.wait_position,
    )
    both = replace(both, held_stages=held_stages(graph.tiling, ordering.run_ahead))
    return _one_launch(both, 0, sizes[0]), _one_launch(both, sizes[0], sum(sizes))


def _one_launch(both: Plan, first_cta: int, end_cta: int) -> Plan:
    """The queues of CTAs `first_cta` to `end_cta` as a separate plan, with all signals and all waits."""
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
    """Both launches as one plan: the CTAs of the first launch, then those of the second.

    Raises:
        LivenessError: tasks of a launch are drawn by ticket.
        WordError: their shared settings differ.
    """
    if (first.assignment, second.assignment) != (STATIC, STATIC):
        raise LivenessError("launches that share signals need queues", "a plan of the two draws tickets")
    if first.num_signals != second.num_signals:
        counts = f"the first has {first.num_signals}, the second {second.num_signals}"
        raise WordError("launches that share signals must agree on their number", counts)
    if first.strided_parts != second.strided_parts:
        raise WordError(
            "launches that share signals must split tiles in the same order",
            "the split tiles of only one of them are strided",
        )
    if first.num_split_tiles != second.num_split_tiles:
        counts = f"the first has {first.num_split_tiles}, the second {second.num_split_tiles}"
        raise WordError("launches that share a workspace must agree on its slots", counts)
    if first.in_band_ops or second.in_band_ops:
        raise WordError("launches that share signals cannot read in band", "in_band_ops must be 0 in both")
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
