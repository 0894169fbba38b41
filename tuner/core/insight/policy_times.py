"""Each policy's time with the kernel of a job's best fused schedule: measured if a trial ran its order, otherwise
forecast."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.core.model.forecast import launch_ops_us
from tuner.core.model.simulate import simulate
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.policy_orders import policy_plans, same_order
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import PolicyTime
from tuner.errors import IllegalSchedule, PlanError

#: The policy that the chosen schedule itself represents.
SEARCHED = "searched"


def policy_times(workload: Workload, gpu: Gpu, chosen: Schedule, trials: Iterable[Trial]) -> tuple[PolicyTime, ...]:
    """The times of the searched order and of each policy's, with the kernel and the grid of `chosen`; empty if
    `chosen` has no plan on this GPU. `trials` are all trials of the job."""
    own = _plan(workload, gpu, chosen)
    if own is None:
        return ()
    measured = [
        (trial, trial.outcome, plan)
        for trial in trials
        if isinstance(trial.outcome, Measured) and _is_like(trial, chosen)
        if trial.candidate.schedule and (plan := _plan(workload, gpu, trial.candidate.schedule))
    ]
    apart_us = sum(launch_ops_us(workload, gpu, fused(chosen)))
    found = []
    for policy, plan in ({SEARCHED: own} | policy_plans(workload, gpu, chosen)).items():
        same = [(trial, outcome) for trial, outcome, other in measured if same_order(plan.plan, other.plan)]
        best = min(same, key=lambda one: (one[1].truncated, one[1].time_us), default=None)
        found.append(
            PolicyTime(
                policy=policy,
                forecast_us=simulate(plan).makespan_us + apart_us,
                measured_us=best[1].time_us if best else None,
                trial_number=best[0].number if best else None,
            )
        )
    return tuple(found)


def policies_sentence(times: Iterable[PolicyTime], *, simulated: bool) -> str:
    """A sentence with the time of each policy, and whether it was measured or forecast."""
    times_of = [
        f"{_words(one.policy)} {one.measured_us:.1f} us in trial {one.trial_number}"
        if one.measured_us is not None
        else f"{_words(one.policy)} {one.forecast_us:.1f} us (forecast)"
        for one in times
    ]
    mark = " (simulated)" if simulated else ""
    return f"Policies{mark}, with this kernel on this grid, in one plain launch: {', '.join(times_of)}."


def _words(policy: str) -> str:
    return policy.replace("_", " ")


def _is_like(trial: Trial, chosen: Schedule) -> bool:
    """Whether a trial's candidate is a plain fused launch of the kernel of `chosen`."""
    kind, schedule = trial.candidate.plan_kind, trial.candidate.schedule
    return kind.is_fused and not kind.is_programmatic and schedule is not None and schedule.tiling == chosen.tiling


def _plan(workload: Workload, gpu: Gpu, schedule: Schedule) -> VerifiedPlan | None:
    """The plan of a schedule's only launch; None if it is refused."""
    try:
        (plan,) = plans_for(workload, gpu, fused(schedule))
    except (IllegalSchedule, PlanError):
        return None
    return plan
