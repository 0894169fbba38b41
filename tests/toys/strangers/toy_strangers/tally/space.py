"""The schedule space."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from toy_strangers.common import near, offered
from toy_strangers.tally.op import TallyOp
from toy_strangers.tally.rules import refuse
from toy_strangers.tally.schedule import AXES, TallySchedule
from tuner.extend import Gpu, Workload


@dataclass(frozen=True, kw_only=True)
class OpSpace:
    """The space of one op of a workload."""

    workload: Workload
    gpu: Gpu
    op: TallyOp

    @cached_property
    def offered(self) -> tuple[TallySchedule, ...]:
        """All legal schedules."""
        return offered(TallySchedule, AXES, lambda one: refuse(self.workload, self.gpu, self.op, one))

    def near(self, one: TallySchedule) -> list[TallySchedule]:
        """The legal schedules that differ in one axis."""
        return near(self.offered, one)
