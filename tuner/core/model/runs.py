"""Which runs of neighbouring ops launch a chain best, according to the simulator: from one launch to one per op.

Each run is simulated once, although many ways to launch the chain contain it. With n ops there are n (n + 1) / 2 runs
and 2^(n - 1) ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

from tuner.core.legal.legality import check_tiles, estimated_resources, kind_problem
from tuner.core.model.forecast import PROGRAMMATIC_GAIN_US
from tuner.core.model.simulate import simulate
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import PlanError


def ways_to_launch(num_ops: int, forced: tuple[int, ...] = ()) -> Iterator[tuple[PlanKind, tuple[int, ...]]]:
    """Every way to launch `num_ops` ops, at least three, programmatically in runs of neighbours: the plan kind, and the
    ops with which later runs begin. Ways with fewer launches come first. A launch begins at each op of `forced`."""
    for num_later in range(num_ops):
        for starts in combinations(range(1, num_ops), num_later):
            if not set(forced) <= set(starts):
                continue
            if not starts:
                yield PlanKind.FUSED_PDL, ()
            elif num_later == num_ops - 1:
                yield PlanKind.N_LAUNCHES_PDL, ()
            else:
                yield PlanKind.RUNS, starts


def ranked_ways(workload: Workload, gpu: Gpu, schedule: Schedule) -> list[tuple[float, Candidate]]:
    """The schedule launched in each way that the GPU and the proof allow, and its forecast in microseconds; fastest
    first, and among equals the one with fewer launches.

    Raises:
        IllegalSchedule: the schedule is not legal.
    """
    num_ops = len(workload.tile_ops)
    schedule = schedule.but(ordering=replace(schedule.ordering, run_starts=()))
    check_tiles(workload, gpu, schedule)
    time_of: dict[tuple[int, int], float | None] = {}
    ranked = []
    for kind, starts in ways_to_launch(num_ops, workload.forced_starts):
        if kind_problem(workload, gpu, kind):
            continue
        begins = range(num_ops) if kind is PlanKind.N_LAUNCHES_PDL else (0, *starts)
        times = []
        for run in pairwise([*begins, num_ops]):
            if run not in time_of:
                time_of[run] = _run_us(workload, gpu, schedule, run)
            times.append(time_of[run])
        known = [time_us for time_us in times if time_us is not None]
        if len(known) == len(times):
            launched = schedule.but(ordering=replace(schedule.ordering, run_starts=starts))
            total_us = sum(known) - len(known) * PROGRAMMATIC_GAIN_US
            ranked.append((total_us, Candidate(plan_kind=kind, schedule=launched)))
    return sorted(ranked, key=lambda way: way[0])


def _run_us(workload: Workload, gpu: Gpu, schedule: Schedule, run: tuple[int, int]) -> float | None:
    """Time of one launch of the ops in `run`; None if the proof refuses its plan."""
    graph = tile_graph(workload, schedule.tiling, tuple(range(*run)))
    resources = estimated_resources(workload, schedule.tiling)
    try:
        return simulate(verify(make_plan(graph, schedule.ordering, gpu), graph, resources, gpu)).makespan_us
    except PlanError:
        return None
