"""The policies applied to an existing schedule: the same kernel, grid and parts of tiles, in each policy's order.

A policy's plan may have a name: the schedule whose plan runs the same tasks in the same order, with the same waits. So
a search can try it, and a schedule can be recognised as a policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from tuner.core.legal.legality import check_tiles
from tuner.core.model.rates import rates_of
from tuner.core.model.task_costs import costs_of
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    SplitTiles,
)
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.policies import Choice, OpVariant, Planned, append, longest_first, wavefront
from tuner.errors import IllegalSchedule, PlanError

Rule = Callable[[Choice], Planned]

#: The rule-based policies, by name; the search itself is the remaining one.
RULES: Mapping[str, Rule] = {
    "wavefront": wavefront,
    "append": append,
    "longest_first": longest_first,
}
#: Merges that may name a policy's plan.
_INTERLEAVES = (InterleaveKind.PRODUCER_FIRST, InterleaveKind.PROPORTIONAL, InterleaveKind.LONGEST_FIRST)
_GRANULARITIES = (Granularity.ROW, Granularity.BARRIER)
_ASSIGNMENTS = (Assignment.STATIC, Assignment.TICKET)


def policy_plans(workload: Workload, gpu: Gpu, base: Schedule) -> dict[str, VerifiedPlan]:
    """The plan of each policy for the kernel and the grid of `base`; a policy whose plan is refused is left out."""
    choice, plans = _choice(workload, gpu, base), {}
    for name, rule in RULES.items():
        if (planned := _try(rule, choice)) is not None:
            plans[name] = planned.plan
    return plans


def policy_schedules(workload: Workload, gpu: Gpu, base: Schedule) -> dict[str, Schedule]:
    """The legal schedule of each policy, if there is one.

    No schedule assigns tasks of unequal length to whichever queue becomes free first. Tickets do that at run time, so
    they replace the waves' queues there.
    """
    choice = _choice(workload, gpu, base)
    drawn: Mapping[str, Rule] = {"wavefront": partial(wavefront, is_drawn=True)}
    found = {}
    for name, rule in RULES.items():
        ways = (rule, drawn[name]) if name in drawn else (rule,)
        plans = (planned.plan.plan for way in ways if (planned := _try(way, choice)) is not None)
        named = (_named(workload, gpu, base, plan) for plan in plans)
        if schedule := next((schedule for schedule in named if schedule is not None), None):
            found[name] = schedule
    return found


def policies_of(workload: Workload, gpu: Gpu, schedule: Schedule) -> list[str]:
    """The names of the policies that give the same order as the schedule, on its own grid.

    Raises:
        IllegalSchedule: the schedule is not legal.
        PlanError: its plan is refused.
    """
    (own,) = plans_for(workload, gpu, fused(schedule))
    return [name for name, plan in policy_plans(workload, gpu, schedule).items() if same_order(plan.plan, own.plan)]


def same_order(one: Plan, other: Plan) -> bool:
    """Whether two plans run the same tasks in the same order on the same CTAs, with the same waits and signals. How
    far a CTA fills its ring ahead of a wait does not affect the order."""
    words, others = (replace(plan, held_stages=0).words for plan in (one, other))
    return np.array_equal(words, others)


def _choice(workload: Workload, gpu: Gpu, base: Schedule) -> Choice:
    """The kernel of `base` as a policy's input, with one variant per op."""
    times = _task_us(workload, gpu, base)
    variants = tuple(
        (OpVariant(tile=tile, task_us=time_us),) for tile, time_us in zip(base.tiling.tiles, times, strict=True)
    )
    return Choice(workload=workload, gpu=gpu, variants=variants, base=base)


def _task_us(workload: Workload, gpu: Gpu, base: Schedule) -> list[float]:
    """Time of a tile of each op according to the simulator, on an SM with its share of the memory's bandwidth."""
    rates = rates_of(gpu)
    costs = costs_of(tile_graph(workload, base.tiling), gpu, rates)
    us_per_byte = 1e6 * gpu.num_sms / (gpu.dram_bytes_per_s * rates.dram_share)
    wholes = [(costs[op], costs[op].whole) for op in range(len(workload.tile_ops))]
    return [max(whole.busy_us, us_per_byte * max(whole.w_bytes)) + cost.store_us for cost, whole in wholes]


def _try(rule: Rule, choice: Choice) -> Planned | None:
    """A policy's result; None if the kernel or the plan is refused."""
    try:
        return rule(choice)
    except (IllegalSchedule, PlanError):
        return None


def _named(workload: Workload, gpu: Gpu, base: Schedule, plan: Plan) -> Schedule | None:
    """The legal schedule with the order of `plan`; None if there is none."""
    graph = tile_graph(workload, base.tiling)
    for ordering in _names(base):
        schedule = base.but(ordering=ordering)
        try:
            check_tiles(workload, gpu, schedule)
        except IllegalSchedule:
            continue
        if same_order(make_plan(graph, ordering, gpu), plan):
            return schedule
    return None


def _names(base: Schedule) -> Iterator[Ordering]:
    """The orderings that may name a policy's plan, on the grid of `base`."""
    is_whole = base.ordering.split_tiles is SplitTiles.ALL
    splits = (SplitTiles.ALL,) if is_whole else (SplitTiles.TAIL, SplitTiles.ALL)
    for kind, granularity, assignment, split in product(_INTERLEAVES, _GRANULARITIES, _ASSIGNMENTS, splits):
        yield Ordering(
            rasters=(Raster(),) * len(base.tiling.tiles),
            interleave=Interleave(kind=kind),
            granularity=granularity,
            assignment=assignment,
            split_tiles=split,
            ctas_per_sm=base.ordering.ctas_per_sm,
            reserved_sms=base.ordering.reserved_sms,
        )
