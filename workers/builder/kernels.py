"""The kernels of a candidate: their sources, the proven plans of their launches, and how builds are tied to them.

Launches of tile ops share a kernel. Each launch op has its own kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.proof.launch_order import in_launch_order
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.schedule.levels import LaunchOpSchedule
from tuner.core.schedule.schedule import Schedule

from ..source.launchable import Launchable
from ..source.own_launchable import OwnLaunchable
from ..source.own_source import own_source, traced_tasks_of
from ..source.render import render
from .nvrtc import Built
from .tie import tie, tie_own


@dataclass(frozen=True, kw_only=True)
class SharedKernel:
    """The kernel of all launches of tile ops."""

    workload: Workload
    #: One plan for each launch.
    plans: tuple[VerifiedPlan, ...]

    def source(self, *, traced: bool) -> str:
        """CUDA C++; `traced` if it stamps its tasks."""
        return render(self.workload, self.plans[0].graph.tiling, traced=traced)

    def tied(self, built: Built, *, traced: bool) -> Launchable:
        """The launchable.

        Raises:
            LaunchRefused, ResourceError: as `tie`.
        """
        return tie(self.plans, built, self.workload, traced=traced)


@dataclass(frozen=True, kw_only=True)
class OwnKernel:
    """The kernel of one launch op."""

    workload: Workload
    #: Index of the op among the launch ops.
    index: int
    schedule: LaunchOpSchedule
    #: Plan in the form of the op's kind.
    plan: Any
    gpu: Gpu

    def source(self, *, traced: bool) -> str:
        """CUDA C++; `traced` if it stamps its tasks.

        Raises:
            IllegalSchedule: as `own_source` and `traced_tasks_of`.
        """
        op = self.workload.launch_ops[self.index]
        return own_source(op, self.schedule, self.workload.dtype, self._traced_tasks(traced=traced))

    def tied(self, built: Built, *, traced: bool) -> OwnLaunchable:
        """The launchable.

        Raises:
            LaunchRefused, ResourceError: as `tie_own`.
        """
        traced_tasks = self._traced_tasks(traced=traced)
        return tie_own(self.workload, self.index, self.schedule, self.plan, self.gpu, built, traced_tasks=traced_tasks)

    def _traced_tasks(self, *, traced: bool) -> int:
        return traced_tasks_of(self.workload.launch_ops[self.index], self.plan) if traced else 0


#: A kernel of a candidate.
Kernel = SharedKernel | OwnKernel


@dataclass(frozen=True, kw_only=True)
class BuiltKernel:
    """A kernel's source, and its build."""

    source: str
    built: Built


def kernels_of(workload: Workload, gpu: Gpu, candidate: Candidate, schedule: Schedule) -> tuple[Kernel, ...]:
    """Every kernel of our candidate, in the order of their first launches, with proven plans.

    Raises:
        IllegalSchedule, PlanError: the candidate is refused.
    """
    workload, candidate = launched(workload, candidate)
    plans = plans_for(workload, gpu, candidate)
    own = own_plans_for(workload, gpu, candidate)
    shared = [(plans[0].graph.op_indices, SharedKernel(workload=workload, plans=plans))] if plans else []
    chosen = enumerate(zip(schedule.launch_ops, own, strict=True))
    of_launch_ops = (
        OwnKernel(workload=workload, index=index, schedule=one, plan=plan, gpu=gpu) for index, (one, plan) in chosen
    )
    return tuple(kernel for _, kernel in in_launch_order(workload, shared, of_launch_ops))
