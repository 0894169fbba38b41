"""A candidate's forecast: the timelines of its launches, and what lies between them."""

from __future__ import annotations

from tuner.core.gpu import Gpu
from tuner.core.launches import plans_for
from tuner.core.outcome import Candidate
from tuner.core.simulate import LAUNCH_US, simulate
from tuner.core.workload import Workload

#: What is left of a launch's start where it begins while the launch before it ends.
PROGRAMMATIC_LAUNCH_US = 0.5


def forecast_us(workload: Workload, gpu: Gpu, candidate: Candidate) -> float:
    """Time of one run of the workload by our kernel in a chain of such runs, microseconds.

    Raises:
        IllegalSchedule: the plan kind is not for this GPU, or the schedule is outside the legal space.
        PlanError: a plan is refused.
    """
    times_us = [simulate(plan).makespan_us for plan in plans_for(workload, gpu, candidate)]
    saved_us = LAUNCH_US - PROGRAMMATIC_LAUNCH_US if candidate.plan_kind.is_programmatic else 0.0
    return sum(times_us) - saved_us * len(times_us)
