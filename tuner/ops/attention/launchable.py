"""An attention's launch: a proven plan, the build of its kernel and the workload, tied by a digest of each."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.core.problem.workload import Workload
from tuner.errors import PlanError
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans import attention_digest, check_attention, check_made_for
from tuner.ops.attention.schedule import AttentionSchedule, AttentionTiling
from tuner.ops.attention.tasks import AttentionPlan
from tuner.workers.source.launchable import LaunchRefused, Ties, cubin_digest


@dataclass(frozen=True, kw_only=True)
class AttentionLaunchable:
    """Not more than a value until it is checked; `tuner.ops.attention.tie` makes one."""

    #: Whose tensors it reads and writes.
    workload: Workload
    #: Of the attention, among the workload's.
    index: int
    schedule: AttentionSchedule
    plan: AttentionPlan
    cubin: bytes
    #: As they were when this was made.
    ties: Ties
    #: Of each CTA's tasks those that it stamps; 0 where nothing is traced.
    traced_tasks: int = 0

    @property
    def op(self) -> AttentionOp:
        """What it computes."""
        return self.workload.launch_ops[self.index]

    @property
    def tiling(self) -> AttentionTiling:
        """What the kernel is compiled for."""
        return self.schedule.tiling_of(self.op.shape)

    def check(self) -> None:
        """That all of it is what was tied, and that the plan is still one.

        Raises:
            LaunchRefused: names what is not.
        """
        name = self.op.name
        if self.plan.op != self.op.shape:
            raise LaunchRefused(f"the plan is of {self.plan.op}, and {name} is {self.op.shape}")
        if self.plan.form != self.op.form:
            raise LaunchRefused(f"the plan of {name} is of {self.plan.form}, and {name} is {self.op.form}")
        if (workload := self.workload.digest) != self.ties.workload:
            raise LaunchRefused(f"the launch of {name} is of workload {workload}, and was tied to {self.ties.workload}")
        if attention_digest(self.plan, self.schedule) != self.ties.proofs[0]:
            raise LaunchRefused(f"the plan of {name} is not what was proven: it was changed after its proof, verify it")
        if cubin_digest(self.cubin) != self.ties.cubin:
            raise LaunchRefused(f"the cubin of {name} is not the one that was built for its plan: build it again")
        try:
            check_attention(self.plan, tile_tokens=self.schedule.tile_tokens)
            check_made_for(self.plan, self.schedule)
        except PlanError as error:
            raise LaunchRefused(f"the plan of {name}: {error}") from error
