"""The offered schedules of one attention, and those near a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.ops.attention.space.offered import near_attentions, offered_attentions


@dataclass(frozen=True, kw_only=True)
class OpSpace:
    """The space of one attention of a workload."""

    workload: Workload
    gpu: Gpu
    op: AttentionOp

    @cached_property
    def offered(self) -> tuple[AttentionSchedule, ...]:
        """All legal schedules of the offered values."""
        return tuple(offered_attentions(self.workload, self.gpu, self.op))

    def near(self, one: AttentionSchedule) -> list[AttentionSchedule]:
        """The legal schedules that differ from `one` in one axis."""
        return near_attentions(self.workload, self.gpu, self.op, one)
