"""The schedule space."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from toy_strangers.absmax.op import AbsmaxOp
from toy_strangers.absmax.rules import refuse
from toy_strangers.absmax.schedule import AXES, AbsmaxSchedule
from toy_strangers.common import near, offered
from tuner.extend import Gpu, Workload


@dataclass(frozen=True, kw_only=True)
class OpSpace:
    """The space of one op of a workload."""

    workload: Workload
    gpu: Gpu
    op: AbsmaxOp

    @cached_property
    def offered(self) -> tuple[AbsmaxSchedule, ...]:
        """All legal schedules."""
        return offered(AbsmaxSchedule, AXES, lambda one: refuse(self.workload, self.gpu, self.op, one))

    def near(self, one: AbsmaxSchedule) -> list[AbsmaxSchedule]:
        """The legal schedules that differ in one axis."""
        return near(self.offered, one)
