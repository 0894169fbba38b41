"""A candidate's forecast: the timelines of its launches, and the gaps between them."""

from __future__ import annotations

import math
from functools import lru_cache

from tuner.core.model.launch_ops import costs_of
from tuner.core.model.rates import rates_of
from tuner.core.model.simulate import Timeline, simulate
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.schedule.candidate import Candidate, fused

#: Time saved by a launch that begins while the previous launch ends.
PROGRAMMATIC_GAIN_US = 1.5


@lru_cache(maxsize=4096)  # a first candidate is needed again when it is built, and by the next job of its shape
def forecast_us(workload: Workload, gpu: Gpu, candidate: Candidate, limit_us: float = math.inf) -> float:
    """Time of one run of the workload in a chain of runs, microseconds; infinity for a plain launch that takes longer
    than `limit_us`, whose simulation stops early. If no schedules of launch ops are given, only tile ops are included.

    Raises:
        IllegalSchedule: the plan kind is not for this GPU, or the schedule is not legal.
        PlanError: a plan is refused.
    """
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
