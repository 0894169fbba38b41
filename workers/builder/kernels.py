"""The kernels of a candidate: of each its source and the proven plans of its launches, and how a build is tied to them.

Launches of tile ops share a kernel. Each launch op has one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import attention_plans_for, plans_for
from tuner.core.proof.launch_order import in_launch_order
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.schedule import Schedule
from tuner.ops.attention.launchable import AttentionLaunchable
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.ops.attention.source import source_of
from tuner.ops.attention.tasks import AttentionPlan
from tuner.ops.attention.tie import tie_attention

from ..source.launchable import Launchable
from ..source.render import render
from .nvrtc import Built
from .tie import tie


@dataclass(frozen=True, kw_only=True)
class SharedKernel:
    """Of all launches of tile ops."""

    workload: Workload
    #: One of each launch.
    plans: tuple[VerifiedPlan, ...]

    def source(self, *, traced: bool) -> str:
        """CUDA C++; `traced` where it stamps its tasks."""
        return render(self.workload, self.plans[0].graph.tiling, traced=traced)

    def tied(self, built: Built, *, traced: bool) -> Launchable:
        """What may be launched.

        Raises:
            LaunchRefused, ResourceError: as `tie`.
        """
        return tie(self.plans, built, self.workload, traced=traced)


@dataclass(frozen=True, kw_only=True)
class OwnKernel:
    """Of the launch of one launch op."""

    workload: Workload
    #: Of the op, among launch ops.
    index: int
    schedule: AttentionSchedule
    plan: AttentionPlan
    gpu: Gpu

    def source(self, *, traced: bool) -> str:
        """CUDA C++; `traced` where it stamps its tasks."""
        op, traced_tasks = self.workload.launch_ops[self.index], self.plan.most_tasks if traced else 0
        return source_of(op, self.schedule, traced_tasks=traced_tasks)

    def tied(self, built: Built, *, traced: bool) -> AttentionLaunchable:
        """What may be launched.

        Raises:
            LaunchRefused, ResourceError: as `tie_attention`.
        """
        return tie_attention(self.workload, self.index, self.schedule, self.plan, self.gpu, built, traced=traced)


#: A kernel of a candidate.
Kernel = SharedKernel | OwnKernel


@dataclass(frozen=True, kw_only=True)
class BuiltKernel:
    """A kernel's source, and its build."""

    source: str
    built: Built


def kernels_of(workload: Workload, gpu: Gpu, candidate: Candidate, schedule: Schedule) -> tuple[Kernel, ...]:
    """Every kernel of a candidate of ours, in the order of their first launches, with proven plans.

    Raises:
        IllegalSchedule, PlanError: the candidate is refused.
    """
    plans = plans_for(workload, gpu, candidate)
    own = attention_plans_for(workload, gpu, candidate)
    shared = [(plans[0].graph.op_indices, SharedKernel(workload=workload, plans=plans))] if plans else []
    chosen = enumerate(zip(schedule.launch_ops, own, strict=True))
    of_launch_ops = (
        OwnKernel(workload=workload, index=index, schedule=one, plan=plan, gpu=gpu) for index, (one, plan) in chosen
    )
    return tuple(kernel for _, kernel in in_launch_order(workload, shared, of_launch_ops))
