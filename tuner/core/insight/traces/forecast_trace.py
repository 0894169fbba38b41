"""The simulator's forecast of a candidate's launches in sequence, as spans and as a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.core.insight.traces.tracing import make_trace, op_names
from tuner.core.model.launch_ops import LaunchTimeline, costs_of
from tuner.core.model.simulate import Timeline, simulate
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.proof.launch_order import in_launch_order
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.trial.reports.inspection import TaskSpan, Trace


def spans_from_timelines(
    plans: Sequence[Plan],
    timelines: Sequence[Timeline],
    num_sms: int,
    scale: float,
    *,
    begin_us: float = 0.0,
    first_launch: int = 0,
) -> tuple[TaskSpan, ...]:
    """The spans of a simulated run of the launches in sequence, with times scaled by `scale`. The first launch begins
    at `begin_us`."""
    spans: list[TaskSpan] = []
    for launch, (plan, timeline) in enumerate(zip(plans, timelines, strict=True), start=first_launch):
        tiles = plan.tasks[:, :3].tolist()
        for cta, task, *times_us in sorted(timeline.rows, key=lambda row: row[1]):
            op, tile_m, tile_n = tiles[task]
            taken, ready, loaded, computed, stored = (round(1e3 * scale * (begin_us + us)) for us in times_us)
            spans.append(
                TaskSpan(
                    launch=launch, task=task, op=op, tile_m=tile_m, tile_n=tile_n, cta=cta, sm=cta % num_sms,
                    taken_ns=taken, ready_ns=ready, loaded_ns=loaded, computed_ns=computed, stored_ns=stored,
                )
            )  # fmt: skip
        begin_us += timeline.makespan_us
    return tuple(spans)


@dataclass(frozen=True, kw_only=True)
class SharedForecast:
    """The simulator's forecast of a launch of tile ops."""

    #: Its number among the launches.
    number: int
    #: When it begins, microseconds.
    begin_us: float
    plan: Plan
    timeline: Timeline

    @property
    def num_ctas(self) -> int:
        """CTAs that have tasks."""
        return self.timeline.num_ctas

    @property
    def end_us(self) -> float:
        """When it ends, microseconds."""
        return self.begin_us + self.timeline.makespan_us

    def spans(self, num_sms: int, scale: float = 1.0) -> tuple[TaskSpan, ...]:
        """Its spans, with times scaled by `scale`."""
        launches = [self.plan], [self.timeline]
        return spans_from_timelines(*launches, num_sms, scale, begin_us=self.begin_us, first_launch=self.number)


@dataclass(frozen=True, kw_only=True)
class OwnForecast:
    """The simulator's forecast of a launch op's launch."""

    #: Its number among the launches.
    number: int
    #: When it begins, microseconds.
    begin_us: float
    timeline: LaunchTimeline
    #: The number of its op in a trace.
    op: int

    @property
    def num_ctas(self) -> int:
        """CTAs that have tasks."""
        return self.timeline.num_ctas

    @property
    def end_us(self) -> float:
        """When it ends, microseconds."""
        return self.begin_us + max(task.times_us[-1] for task in self.timeline.tasks)

    def spans(self, num_sms: int, scale: float = 1.0) -> tuple[TaskSpan, ...]:
        """Its spans, with times scaled by `scale`."""
        spans: list[TaskSpan] = []
        for task in self.timeline.tasks:
            begin, loaded, computed, stored = (round(1e3 * scale * (self.begin_us + us)) for us in task.times_us)
            spans.append(
                TaskSpan(
                    launch=self.number, task=len(spans), op=self.op, tile_m=task.tile[0], tile_n=task.tile[1],
                    cta=task.cta, sm=task.cta % num_sms, taken_ns=begin, ready_ns=begin, loaded_ns=loaded,
                    computed_ns=computed, stored_ns=stored,
                )
            )  # fmt: skip
        return tuple(spans)


def forecast_launches(
    workload: Workload, gpu: Gpu, candidate: Candidate, verified: Sequence[VerifiedPlan]
) -> Iterator[SharedForecast | OwnForecast]:
    """Simulates the launches of our candidate in sequence; `verified` has the plans of those of tile ops.

    Raises:
        IllegalSchedule, PlanError: the candidate is refused.
    """
    workload, candidate = launched(workload, candidate)
    schedules = candidate.schedule.launch_ops if candidate.schedule else ()
    plans = own_plans_for(workload, gpu, candidate)
    own = [*enumerate(zip(workload.launch_ops, schedules, plans, strict=True), start=len(workload.tile_ops))]
    shared = [(plan.graph.op_indices, plan) for plan in verified]
    begin_us = 0.0
    for number, (_, launch) in enumerate(in_launch_order(workload, shared, own)):
        one: SharedForecast | OwnForecast
        if isinstance(launch, VerifiedPlan):
            one = SharedForecast(number=number, begin_us=begin_us, plan=launch.plan, timeline=simulate(launch))
        else:
            index, (op, schedule, plan) = launch
            timeline = costs_of(op).timeline(op, schedule, plan, gpu)
            one = OwnForecast(number=number, begin_us=begin_us, timeline=timeline, op=index)
        yield one
        begin_us = one.end_us


def forecast_trace(workload: Workload, gpu: Gpu, candidate: Candidate, scale: float) -> Trace:
    """The trace of a simulated run of our candidate, its launches in sequence, with times scaled by `scale`.

    Raises:
        IllegalSchedule, PlanError: the candidate is refused.
    """
    workload, candidate = launched(workload, candidate)
    launches = [*forecast_launches(workload, gpu, candidate, plans_for(workload, gpu, candidate))]
    spans = (span for launch in launches for span in launch.spans(gpu.num_sms, scale))
    return make_trace(spans, op_names(workload), [launch.num_ctas for launch in launches], simulated=True)
