"""The launches of a launch op: a proven plan, the build of its kernels and the workload, tied by a digest of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuner.core.plan.op_launches import OpLaunches
from tuner.core.problem.workload import Workload
from tuner.core.proof.own_plans import check_own_plan, launches_for, own_digest
from tuner.core.schedule.levels import LaunchOpSchedule
from tuner.errors import IllegalSchedule, PlanError

from .launchable import LaunchRefused, Ties, cubin_digest


@dataclass(frozen=True, kw_only=True)
class OwnLaunchable:
    """A proven and built launch op; only a value until it is checked. `tuner.workers.builder.tie` makes it."""

    #: The workload whose tensors it reads and writes.
    workload: Workload
    #: Index of the op, among the workload's launch ops.
    index: int
    schedule: Any
    #: Plan in the form of the op's kind.
    plan: Any
    cubin: bytes
    #: The ties at the time of creation.
    ties: Ties
    #: Number of tasks per CTA that it stamps; 0 without a trace.
    traced_tasks: int = 0

    @property
    def op(self) -> Any:
        """The launch op that it computes."""
        return self.workload.launch_ops[self.index]

    @property
    def launches(self) -> OpLaunches:
        """The arguments of all launches."""
        return launches_for(self.workload, self.op, self.schedule, self.plan)

    def check(self) -> None:
        """Checks that everything is unchanged since it was tied, and that the plan is still valid.

        Raises:
            LaunchRefused: something differs; the message has the difference.
        """
        op, name = self.op, self.op.name
        if not isinstance(self.schedule, LaunchOpSchedule) or self.schedule.kind != op.KIND:
            raise LaunchRefused(f"the schedule of {name} is {self.schedule}, but the op is a {op.KIND}")
        if (workload := self.workload.digest) != self.ties.workload:
            raise LaunchRefused(f"the launch of {name} is of workload {workload}, but was tied to {self.ties.workload}")
        try:
            check_own_plan(self.workload, op, self.schedule, self.plan)
            digest = own_digest(self.workload, op, self.schedule, self.plan)
        except (IllegalSchedule, PlanError) as error:
            raise LaunchRefused(f"the plan of {name}: {error}") from error
        if digest != self.ties.proofs[0]:
            raise LaunchRefused(f"the plan of {name} was modified after it was proven; verify it again")
        if cubin_digest(self.cubin) != self.ties.cubin:
            raise LaunchRefused(f"the cubin of {name} is not the one that was built for its plan: build it again")
