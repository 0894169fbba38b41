"""From a candidate to the verified plans of its launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.core.legal.legality import check_kind, check_schedule, check_tiles, estimated_resources
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.plan.two_streams import make_paired_plans
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.joined import computed_by
from tuner.core.problem.resources import Resources
from tuner.core.problem.workload import Workload
from tuner.core.proof.own_plans import proven_plan
from tuner.core.proof.verify import VerifiedPlan, verify, verify_paired_launches
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.schedule.schedule import Schedule
from tuner.errors import CoverageError


def plans_for(workload: Workload, gpu: Gpu, candidate: Candidate) -> tuple[VerifiedPlan, ...]:
    """The plans of a candidate's launches of tile ops, in the order in which they are enqueued: none for the library,
    one for a fused kind, one per run if the ops are launched in runs, one per op for other kinds. Schedules of launch
    ops do not matter.

    Raises:
        IllegalSchedule: the plan kind is not for this GPU, or the schedule is not legal.
        PlanError: a plan is refused.
        ValueError: there is no schedule, but the plan kind needs one.
    """
    if not candidate.plan_kind.is_ours:
        return ()
    workload, candidate = launched(workload, candidate)
    schedule = candidate.schedule
    if schedule is None:
        raise ValueError(f"a {candidate.plan_kind} candidate needs a schedule")
    check_kind(workload, gpu, candidate.plan_kind, schedule)
    check_tiles(workload, gpu, schedule)
    if not workload.tile_ops:
        return ()
    return _proven(workload, gpu, candidate, schedule, estimated_resources(workload, schedule.tiling))


def fallback_for(candidate: Candidate, plans: Sequence[VerifiedPlan]) -> tuple[VerifiedPlan, ...]:
    """The plans of the same launches for every card of the model, if those of a live card need more clusters at once
    than some cards hold; otherwise empty.

    Raises:
        PlanError: a plan is refused.
    """
    needy = any(one.plan.needs_all_ctas and not one.is_paired for one in plans)
    if not needy or candidate.schedule is None:
        return ()
    first = plans[0]
    workload, any_card = first.graph.workload, first.gpu.as_any_card
    found = _proven(workload, any_card, candidate, candidate.schedule, first.resources)
    return () if [one.plan.num_ctas for one in found] == [one.plan.num_ctas for one in plans] else found


def _proven(
    workload: Workload, gpu: Gpu, candidate: Candidate, schedule: Schedule, resources: Resources
) -> tuple[VerifiedPlan, ...]:
    if candidate.plan_kind.is_side_by_side:
        graph = tile_graph(workload, schedule.tiling)
        return verify_paired_launches(*make_paired_plans(graph, schedule.ordering, gpu), graph, resources, gpu)
    launches = launches_of(workload, candidate)
    check_launches(workload, launches)
    shared = [launch for launch in launches if launch[0] in workload.tile_places]
    graphs = [tile_graph(workload, schedule.tiling, tuple(map(workload.tile_places.index, one))) for one in shared]
    return tuple(verify(make_plan(graph, schedule.ordering, gpu), graph, resources, gpu) for graph in graphs)


def own_plans_for(workload: Workload, gpu: Gpu, candidate: Candidate) -> tuple[Any, ...]:
    """The plans of a candidate's launch ops; `launches_of` places their launches.

    Raises:
        IllegalSchedule, PlanError, ValueError: see `plans_for`.
    """
    workload, candidate = launched(workload, candidate)
    schedule = candidate.schedule
    if not candidate.plan_kind.is_ours or schedule is None or not workload.launch_ops:
        return ()
    check_kind(workload, gpu, candidate.plan_kind, schedule)
    check_schedule(workload, gpu, schedule)
    pairs = zip(workload.launch_ops, schedule.launch_ops, strict=True)
    return tuple(proven_plan(workload, op, one, gpu) for op, one in pairs)


def launches_of(workload: Workload, candidate: Candidate) -> tuple[tuple[int, ...], ...]:
    """The ops of each launch of our candidate that is not side by side, by their positions in `Workload.ops`, in the
    order in which launches are enqueued. Tile ops share launches as defined by the plan kind."""
    if candidate.plan_kind.is_joined:
        made, inside = launched(workload, candidate)
        places = {op.name: place for place, op in enumerate(workload.ops)}
        computed = [tuple(places[name] for name in names) for names in computed_by(workload).values()]
        return tuple(tuple(sorted(p for op in launch for p in computed[op])) for launch in launches_of(made, inside))
    starts = set(range(len(workload.tile_ops)))
    if candidate.plan_kind.is_fused:
        starts = {0}
    elif candidate.plan_kind.is_in_runs and candidate.schedule is not None:
        starts = {0, *candidate.schedule.ordering.run_starts}
    first, launches, shared = {workload.tile_places[start] for start in starts}, list[list[int]](), list[int]()
    for place in range(len(workload.ops)):
        if place in workload.tile_places and place not in first:
            shared.append(place)
            continue
        launches.append([place])
        shared = launches[-1] if place in first else shared
    return tuple(map(tuple, launches))


def check_launches(workload: Workload, launches: Sequence[tuple[int, ...]]) -> None:
    """Checks that consecutive launches, in the form of `launches_of`, compute each op once, and that none reads what a
    later one writes. Then stream order ensures every edge between two of them, as long as each launch waits for the
    previous one before it ends. A launch op has its own launch, and no launch has tile ops from both sides of it.

    Raises:
        CoverageError: this does not hold for an op, with its name.
    """
    ops = workload.ops
    others = [place for place in range(len(ops)) if place not in workload.tile_places]
    launch_of: dict[int, int] = {}
    for number, launch in enumerate(launches):
        for op in launch:
            if op in launch_of:
                who = f"{ops[op].name}: launches {launch_of[op]} and {number}"
                raise CoverageError("an op is computed by two launches", who)
            launch_of[op] = number
        if len(launch) > 1 and set(others) & set(launch):
            raise CoverageError("a launch op shares a launch", f"launch {number}: {_names(workload, launch)}")
        if any(min(launch) < place < max(launch) for place in others):
            raise CoverageError("a launch spans a launch op", f"launch {number}: {_names(workload, launch)}")
    index_of = {op.name: index for index, op in enumerate(ops)}
    for index, described in enumerate(ops):
        if index not in launch_of:
            raise CoverageError("an op is computed by no launch", described.name)
        for tensor in described.read_names:
            writer = index_of.get(tensor, index)
            if launch_of.get(writer, 0) > launch_of[index]:
                who = (
                    f"{described.name}, in launch {launch_of[index]}, reads {tensor}, "
                    f"written in launch {launch_of[writer]}"
                )
                raise CoverageError("a launch reads what a later one writes", who)


def _names(workload: Workload, launch: tuple[int, ...]) -> str:
    return " and ".join(workload.ops[op].name for op in launch)
