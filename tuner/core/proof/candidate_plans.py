"""From a candidate to the verified plans of its launches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tuner.core.legal.legality import check_kind, check_schedule, estimated_resources
from tuner.core.plan.attention import AttentionPlan
from tuner.core.plan.build import make_plan
from tuner.core.plan.tile_graph import tile_graph
from tuner.core.plan.two_streams import make_paired_plans
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.attention import attention_plan
from tuner.core.proof.verify import VerifiedPlan, verify, verify_paired_launches
from tuner.core.schedule.candidate import Candidate
from tuner.errors import CoverageError


def plans_for(workload: Workload, gpu: Gpu, candidate: Candidate) -> tuple[VerifiedPlan, ...]:
    """The plans of a candidate's launches of products, in the order in which they are enqueued: none for the library,
    one for a fused kind, one per run where the ops are launched in runs, one per op for the others.

    Raises:
        IllegalSchedule: the plan kind is not for this GPU, or the schedule is outside the legal space.
        PlanError: a plan is refused.
        ValueError: a plan of ours came without a schedule.
    """
    if not candidate.plan_kind.is_ours:
        return ()
    schedule = candidate.schedule
    if schedule is None:
        raise ValueError(f"a {candidate.plan_kind} candidate needs a schedule")
    check_kind(workload, gpu, candidate.plan_kind, schedule)
    check_schedule(workload, gpu, schedule)
    if not workload.ops:
        return ()
    resources = estimated_resources(workload, schedule.tiling)
    if candidate.plan_kind.is_side_by_side:
        graph = tile_graph(workload, schedule.tiling)
        return verify_paired_launches(*make_paired_plans(graph, schedule.ordering, gpu), graph, resources, gpu)
    launches = launches_of(len(workload.ops), candidate)
    check_launches(workload, launches)
    graphs = [tile_graph(workload, schedule.tiling, launch) for launch in launches]
    return tuple(verify(make_plan(graph, schedule.ordering, gpu), graph, resources, gpu) for graph in graphs)


def attention_plans_for(workload: Workload, gpu: Gpu, candidate: Candidate) -> tuple[AttentionPlan, ...]:
    """The plans of a candidate's launches of attentions, each of which goes in front of what reads it.

    Raises:
        IllegalSchedule, PlanError, ValueError: as `plans_for`.
    """
    schedule = candidate.schedule
    if not candidate.plan_kind.is_ours or schedule is None or not workload.attentions:
        return ()
    check_kind(workload, gpu, candidate.plan_kind, schedule)
    check_schedule(workload, gpu, schedule)
    pairs = zip(workload.attentions, schedule.attentions, strict=True)
    return tuple(attention_plan(op, one, gpu) for op, one in pairs)


def launches_of(num_ops: int, candidate: Candidate) -> tuple[tuple[int, ...], ...]:
    """The ops of each launch of a candidate of ours that is not side by side."""
    starts = [0, *range(1, num_ops)]
    if candidate.plan_kind.is_fused:
        starts = [0]
    elif candidate.plan_kind.is_in_runs and candidate.schedule is not None:
        starts = [0, *candidate.schedule.ordering.run_starts]
    return tuple(tuple(range(begin, end)) for begin, end in pairwise([*starts, num_ops]))


def check_launches(workload: Workload, launches: Sequence[tuple[int, ...]]) -> None:
    """Launches one after the other compute each op once, and none reads what a later one writes. So stream order keeps
    every edge between two of them, as long as each launch waits for the one before it before it ends.

    Raises:
        CoverageError: names the op.
    """
    launch_of: dict[int, int] = {}
    for number, launch in enumerate(launches):
        for op in launch:
            if op in launch_of:
                who = f"{workload.ops[op].name}: launches {launch_of[op]} and {number}"
                raise CoverageError("an op is computed by two launches", who)
            launch_of[op] = number
    for op, described in enumerate(workload.ops):
        if op not in launch_of:
            raise CoverageError("an op is computed by no launch", described.name)
        for producer in workload.producers_of(op):
            if launch_of.get(producer, 0) > launch_of[op]:
                who = f"{described.name}, of launch {launch_of[op]}, reads {workload.ops[producer].name}"
                raise CoverageError("a launch reads what a later one writes", f"{who}, of launch {launch_of[producer]}")
