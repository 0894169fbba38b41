"""Policies, separate from the mechanism: each maps ops with measured variants to a verified plan.

The mechanism is the plan: queues or tickets, signals, the proof. A policy decides which variant of each op is compiled,
in which order the tasks run, and what they wait for. Breadth-first waves are one policy, a search is another.

Source: Ma et al., "Rammer: Enabling Holistic Deep Learning Compiler Optimizations with rTasks", OSDI 2020 (rTasks,
virtual execution units, the wavefront policy); Graham, SIAM J. Appl. Math. 17(2), 1969 (longest processing time).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from tuner.core.legal.legality import estimated_resources, register_cap, tiling_problem
from tuner.core.plan.build import Ints, grid_capacity, make_plan, plan_of, proportional
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.queues import split_of
from tuner.core.plan.order.split_tasks import parted
from tuner.core.plan.order.task_source import TaskSource
from tuner.core.plan.table.words import Plan, Words
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.symbolic_run import Board, Protocol
from tuner.core.proof.verify import VerifiedPlan, verify
from tuner.core.schedule.ordering import Granularity
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.space.space import Space
from tuner.errors import IllegalSchedule, InvalidInput

Costs = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class OpVariant:
    """One way to divide an op into tasks."""

    #: The tile of one task.
    tile: Tile
    #: Measured time of one task on one CTA, microseconds, > 0.
    task_us: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The input of a policy."""

    workload: Workload
    gpu: Gpu
    #: Per op, its variants.
    variants: tuple[tuple[OpVariant, ...], ...]
    #: Stages of the kernel that all ops share.
    num_stages: int = 3
    num_warps: int = 4
    #: CTAs that share an SM, for which the variants were measured; with 2, registers are capped if necessary.
    ctas_per_sm: int = 1
    #: A schedule of which every plan keeps the kernel, the grid and the parts of tiles, but not the rest of its order.
    #: If it is given, the three fields before it are ignored.
    base: Schedule | None = None

    def __post_init__(self) -> None:
        if len(self.variants) != len(self.workload.tile_ops) or not all(self.variants):
            num_ops = len(self.workload.tile_ops)
            raise InvalidInput(
                "variants", "there must be a list for each op, and none may be empty", f"use {num_ops} lists"
            )

    @property
    def num_ctas(self) -> int:
        """CTAs, or clusters, that run at the same time."""
        if self.base is not None:
            return grid_capacity(self.base.ordering, self.gpu, self.base.tiling)
        return self.ctas_per_sm * self.gpu.num_sms

    def tiling(self, picked: Sequence[OpVariant]) -> Tiling:
        """The kernel with one variant per op."""
        tiles = tuple(variant.tile for variant in picked)
        if self.base is not None:
            return replace(self.base.tiling, tiles=tiles)
        plain = Tiling(tiles=tiles, num_stages=self.num_stages, num_warps=self.num_warps)
        capped = replace(plain, resident_ctas=self.ctas_per_sm)
        return plain if register_cap(capped) == register_cap(plain) else capped

    def num_tasks(self, op_index: int, variant: OpVariant) -> int:
        """Number of the op's tiles, or their parts, with this variant."""
        op, tile = self.workload.tile_ops[op_index], variant.tile
        num_rows, num_cols = op.tile_grid(tile.m, tile.n)
        return num_rows * num_cols * (self.base.tiling.num_parts(op_index) if self.base else 1)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A policy's answer."""

    #: What is compiled.
    tiling: Tiling
    #: What is launched.
    plan: VerifiedPlan
    #: Makespan with the variants' measured costs, microseconds, without contention.
    estimate_us: float


Policy = Callable[[Choice], Planned]
#: [tasks] the queue of each task, given the time of each task and the number of queues.
QueueRule = Callable[[Costs, int], Ints]


def fastest(choice: Choice, op: int) -> OpVariant:
    """The variant that ends first if the op has the whole GPU."""
    return min(
        choice.variants[op], key=lambda v: (-(-choice.num_tasks(op, v) // choice.num_ctas) * v.task_us, v.task_us)
    )


def frugal(choice: Choice, op: int) -> OpVariant:
    """The variant with the least total CTA time."""
    return min(choice.variants[op], key=lambda v: choice.num_tasks(op, v) * v.task_us)


def wavefront(choice: Choice, *, is_drawn: bool = False) -> Planned:
    """Breadth-first waves over the ops; in each wave, the fastest variants while there are CTAs left for their
    tasks, then the frugal ones. A wave's ops run mixed, each task in the queue that becomes free first. `is_drawn`
    leaves the choice of the CTA to the launch, which draws the task by ticket."""
    picked: list[OpVariant] = []
    waves = _waves(choice.workload)
    num_used = dict.fromkeys(waves, 0)
    for op, wave in enumerate(waves):
        variant = fastest(choice, op)
        if num_used[wave] + choice.num_tasks(op, variant) > choice.num_ctas:
            variant = frugal(choice, op)
        num_used[wave] += choice.num_tasks(op, variant)
        picked.append(variant)
    graph = _graph(choice, picked)
    order = np.concatenate(
        [_mixed(graph, [op for op, w in enumerate(waves) if w == wave]) for wave in sorted(num_used)]
    )
    return _planned(choice, picked, graph, order, Granularity.ROW, None if is_drawn else _earliest_free)


def append(choice: Choice) -> Planned:
    """Op after op, each in its fastest variant, assigned in turn, with a group sync (barrier) after each producer."""
    picked = [fastest(choice, op) for op in range(len(choice.workload.tile_ops))]
    graph = _graph(choice, picked)
    order = np.concatenate([_mixed(graph, [op]) for op in graph.op_indices])
    return _planned(choice, picked, graph, order, Granularity.BARRIER, _in_turns)


def longest_first(choice: Choice) -> Planned:
    """Fastest variants; the op whose task starts the longest chain of tasks first, drawn by ticket."""
    picked = [fastest(choice, op) for op in range(len(choice.workload.tile_ops))]
    graph = _graph(choice, picked)
    length: dict[int, float] = {}
    for op in reversed(graph.op_indices):
        after = max((length[reader] for reader in length if op in choice.workload.producers_of(reader)), default=0.0)
        length[op] = picked[op].task_us + after
    ranked = sorted(graph.op_indices, key=lambda op: -length[op])
    return _planned(
        choice, picked, graph, np.concatenate([_mixed(graph, [op]) for op in ranked]), Granularity.ROW, None
    )


def searched(choice: Choice, *, num_tried: int = 100, seed: int = 0) -> Planned:
    """The best estimate of a random sample: every combination of variants in turn, with random legal orderings."""
    rng = random.Random(seed)
    space = Space(choice.workload, choice.gpu)
    combinations = [list(picked) for picked in product(*choice.variants)]
    best: Planned | None = None
    for turn in range(max(num_tried, len(combinations))):
        picked = combinations[turn % len(combinations)]
        graph = _graph(choice, picked)
        orderings = space.orderings(graph.tiling)
        if not orderings:
            continue
        ordering = orderings[rng.randrange(len(orderings))]
        planned = _verified(choice, picked, graph, make_plan(graph, ordering, choice.gpu))
        if best is None or planned.estimate_us < best.estimate_us:
            best = planned
    if best is None:
        raise IllegalSchedule("no combination of these variants has a legal ordering")
    return best


#: The policies by name.
POLICIES: Mapping[str, Policy] = {
    "wavefront": wavefront,
    "append": append,
    "longest_first": longest_first,
    "searched": searched,
}


def estimate_us(verified: VerifiedPlan, task_us: Mapping[int, float]) -> float:
    """Makespan by list scheduling, if each task of an op takes its measured time, microseconds."""
    plan, protocol = verified.plan, Protocol(verified.plan)
    board, source, costs = Board(protocol), TaskSource(plan), _costs(task_us, plan.tasks).tolist()
    held, running, makespan_us = [-1] * plan.num_ctas, [False] * plan.num_ctas, 0.0
    events = [(0.0, cta) for cta in range(plan.num_ctas)]
    while events:
        makespan_us, cta = heapq.heappop(events)
        if running[cta]:
            for waiter in board.complete(held[cta]):
                heapq.heappush(events, (makespan_us, waiter))
            running[cta], held[cta] = False, -1
        if held[cta] < 0:
            held[cta] = source.take(cta)
            if held[cta] < 0:
                continue
        if not board.parks(cta, held[cta]):
            running[cta] = True
            heapq.heappush(events, (makespan_us + costs[held[cta]], cta))
    return makespan_us


def _waves(workload: Workload) -> list[int]:
    """[op] number of steps from an input."""
    waves: list[int] = []
    for op in range(len(workload.tile_ops)):
        waves.append(max((waves[producer] + 1 for producer in workload.producers_of(op)), default=0))
    return waves


def _graph(choice: Choice, picked: list[OpVariant]) -> TileGraph:
    tiling = choice.tiling(picked)
    if problem := tiling_problem(choice.workload, choice.gpu, tiling):
        raise IllegalSchedule(f"{tiling}: {problem}")
    return tile_graph(choice.workload, tiling)


def _mixed(graph: TileGraph, ops: list[int]) -> Ints:
    """[tasks, 3]: the ops' tiles, each row by row, mixed in proportion."""
    runs = [[(op, *tile) for tile in np.ndindex(*graph.grids[op])] for op in ops]
    tasks = np.array([task for run in runs for task in run], dtype=np.int64)
    return np.asarray(tasks[proportional([len(run) for run in runs])])


def _in_turns(costs: Costs, num_ctas: int) -> Ints:
    """The queue of each task, assigned in turn."""
    return np.arange(costs.size, dtype=np.int64) % num_ctas


def _earliest_free(costs: Costs, num_ctas: int) -> Ints:
    """The queue of each task: the one that becomes free first."""
    free = [(0.0, cta) for cta in range(num_ctas)]
    queue = np.empty(costs.size, dtype=np.int64)
    for task, cost in enumerate(costs.tolist()):
        busy_us, cta = free[0]
        heapq.heapreplace(free, (busy_us + cost, cta))
        queue[task] = cta
    return queue


def _planned(
    choice: Choice,
    picked: list[OpVariant],
    graph: TileGraph,
    order: Ints,
    granularity: Granularity,
    queue_of: QueueRule | None,
) -> Planned:
    """The tasks of a global order of tiles, in queues by `queue_of` or drawn. The plan splits only tiles of the tail
    if the base does."""
    num_ctas = min(graph.num_tasks, choice.num_ctas)
    is_split = split_of(order[:, 0], num_ctas, replace(choice.base.ordering, partition=0)) if choice.base else None
    tasks = parted(graph, (order[:, 0], order[:, 1], order[:, 2]), is_split=is_split)
    costs = _costs({op: picked[op].task_us for op in graph.op_indices}, tasks)
    plan = plan_of(graph, tasks, granularity, 1, num_ctas, queue_of(costs, num_ctas) if queue_of else None)
    return _verified(choice, picked, graph, plan)


def _costs(task_us: Mapping[int, float], tasks: Words) -> Costs:
    """[tasks] the time of each task: a part takes its share of its tile's time."""
    whole = np.array([task_us[op] for op in tasks[:, 0].tolist()])
    return whole / np.maximum(1, tasks[:, 7])


def _verified(choice: Choice, picked: list[OpVariant], graph: TileGraph, plan: Plan) -> Planned:
    verified = verify(plan, graph, estimated_resources(choice.workload, graph.tiling), choice.gpu)
    costs = {op: picked[op].task_us for op in graph.op_indices}
    return Planned(tiling=graph.tiling, plan=verified, estimate_us=estimate_us(verified, costs))
