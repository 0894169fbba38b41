"""A candidate's forecast: the timelines of its launches, and the gaps between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tuner.core.model.launch_ops import costs_of
from tuner.core.model.memory import least_memory_us
from tuner.core.model.rates import rates_of
from tuner.core.model.simulate import Timeline, simulate
from tuner.core.model.task_costs import k_step_us
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.schedule.candidate import Candidate, fused, launched

#: Time saved by a launch that begins while the previous launch ends.
PROGRAMMATIC_GAIN_US = 1.5
#: Relative error that sums of floats may have.
_ROUNDING = 1e-6


@dataclass(kw_only=True)
class _Known:
    """What earlier forecasts of a candidate found, microseconds."""

    time_us: float | None = None
    #: It takes longer than this.
    over_us: float = -math.inf


@lru_cache(maxsize=4096)  # a first candidate is needed again when it is built, and by the next job of its shape
def _known(workload: Workload, gpu: Gpu, candidate: Candidate) -> _Known:
    """The record of a candidate's forecasts, which `forecast_us` updates."""
    return _Known()


def forecast_us(workload: Workload, gpu: Gpu, candidate: Candidate, limit_us: float = math.inf) -> float:
    """Time of one run of the workload in a chain of runs, microseconds; infinity if it takes longer than `limit_us`.
    The simulation of a single plain launch then stops early. If no schedules of launch ops are given, only tile ops are
    included.

    Raises:
        IllegalSchedule: the plan kind is not for this GPU, or the schedule is not legal.
        PlanError: a plan is refused.
    """
    known = _known(workload, gpu, candidate)
    if known.time_us is None and limit_us > known.over_us:
        time_us = _forecast_us(workload, gpu, candidate, limit_us)
        if time_us < math.inf:
            known.time_us = time_us
        else:
            known.over_us = limit_us
    return known.time_us if known.time_us is not None and known.time_us <= limit_us else math.inf


def least_us(workload: Workload, gpu: Gpu, candidate: Candidate) -> float:
    """A time that no forecast of the candidate is below, microseconds, from its tiling alone: the work of all tiles
    shared equally by the SMs, their operands through the link, or their weights from the DRAM, whichever is most. 0 if
    nothing is known: for the library, two streams, and launch ops alone."""
    workload, candidate = launched(workload, candidate)
    kind = candidate.plan_kind
    if candidate.schedule is None or not workload.tile_ops or kind.is_side_by_side:  # such launches overlap
        return 0.0
    rates, graph = rates_of(gpu), tile_graph(workload, candidate.schedule.tiling)
    begin_us = -len(workload.ops) * PROGRAMMATIC_GAIN_US if kind.is_programmatic else rates.launch_us
    num_lanes = gpu.num_clusters(graph.tiling.cluster_size)
    num_tiles = {op: rows * columns for op, (rows, columns) in graph.grids.items()}
    sharers = graph.tiling.cluster_k  # each takes its share of a tile's k-steps
    num_steps = {op: count * -(-len(graph.steps(op)) // sharers) for op, count in num_tiles.items()}
    busy_us = sum(count * k_step_us(graph, op, gpu, rates) for op, count in num_steps.items()) / num_lanes
    return (begin_us + max(busy_us, least_memory_us(graph, gpu, rates))) * (1 - _ROUNDING)


def _forecast_us(workload: Workload, gpu: Gpu, candidate: Candidate, limit_us: float) -> float:
    """Same as `forecast_us`, computed."""
    workload, candidate = launched(workload, candidate)
    launch_us = rates_of(gpu).launch_us
    plans = plans_for(workload, gpu, candidate)
    is_limited = len(plans) == 1 and not candidate.plan_kind.is_programmatic
    is_apart, limit_us = candidate.plan_kind.is_programmatic, limit_us if is_limited else math.inf
    timelines = [simulate(plan, limit_us=limit_us, is_apart=is_apart) for plan in plans]
    apart_us = launch_ops_us(workload, gpu, candidate)
    total_us = sum(apart_us) + sum(timeline.makespan_us for timeline in timelines)
    if candidate.plan_kind.is_programmatic:
        return total_us - (len(apart_us) + len(timelines)) * PROGRAMMATIC_GAIN_US
    if candidate.plan_kind.is_side_by_side:
        # The launches overlap while CTAs of the first one are idle, and at best as well as the tasks of one launch.
        assert candidate.schedule is not None
        together_us = forecast_us(workload, gpu, fused(candidate.schedule))
        return max(total_us - launch_us - _idle_us(timelines[0]), together_us)
    return total_us


def launch_ops_us(workload: Workload, gpu: Gpu, candidate: Candidate) -> list[float]:
    """Times of each launch op's launch, minus the time that it saves in the next launch; empty if no schedule is given.

    Raises:
        IllegalSchedule: no costs are known for one of the kinds.
    """
    schedules = candidate.schedule.launch_ops if candidate.schedule else ()
    if not schedules:
        return []
    plans = own_plans_for(workload, gpu, candidate)
    return [
        costs_of(op).launch_us(op, one, plan, gpu)
        for plan, op, one in zip(plans, workload.launch_ops, schedules, strict=True)
    ]


def _idle_us(timeline: Timeline) -> float:
    """Average time between the end of a CTA and the end of the launch, which CTAs of another launch can use."""
    ends_us = [spans[-1].end_us if spans else 0.0 for spans in timeline.spans]
    return timeline.makespan_us - sum(ends_us) / len(ends_us)
