"""From a candidate to the verified plans of its launches."""

from __future__ import annotations

from tuner.core.legal.legality import check_kind, check_schedule, estimated_resources
from tuner.core.plan.build import make_plan
from tuner.core.plan.tile_graph import tile_graph
from tuner.core.plan.two_streams import make_paired_plans
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan, verify, verify_paired_launches
from tuner.core.schedule.candidate import Candidate


def plans_for(workload: Workload, gpu: Gpu, candidate: Candidate) -> tuple[VerifiedPlan, ...]:
    """The plans of a candidate's launches, in the order in which they are enqueued: none for the library, one for a
    fused kind, one per op for the others.

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
    ops = tuple(range(len(workload.ops)))
    resources = estimated_resources(workload, schedule.tiling)
    if candidate.plan_kind.is_side_by_side:
        graph = tile_graph(workload, schedule.tiling)
        return verify_paired_launches(*make_paired_plans(graph, schedule.ordering, gpu), graph, resources, gpu)
    launches = [ops] if candidate.plan_kind.is_fused else [(op,) for op in ops]
    graphs = [tile_graph(workload, schedule.tiling, launch) for launch in launches]
    return tuple(verify(make_plan(graph, schedule.ordering, gpu), graph, resources, gpu) for graph in graphs)
