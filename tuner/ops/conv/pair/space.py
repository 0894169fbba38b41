"""The schedule space of a pair of convolutions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.rules import refuse
from tuner.ops.conv.pair.schedule import SIDES, ConvPairSchedule

_AXES = tuple(one.name for one in fields(ConvPairSchedule))


@dataclass(frozen=True, kw_only=True)
class OpSpace:
    """The space of one op of a workload."""

    workload: Workload
    gpu: Gpu
    op: ConvPairOp

    @cached_property
    def offered(self) -> tuple[ConvPairSchedule, ...]:
        """All legal schedules."""
        found = (
            ConvPairSchedule(rows=rows, columns=columns, warpgroups=warpgroups, together=together)
            for rows, columns, (warpgroups, together) in product(SIDES, SIDES, ((1, False), (2, False), (2, True)))
        )
        return tuple(one for one in found if refuse(self.workload, self.gpu, self.op, one) is None)

    def near(self, one: ConvPairSchedule) -> list[ConvPairSchedule]:
        """The legal schedules that differ in one axis, or only in how warpgroups share tiles."""

        def steps(other: ConvPairSchedule) -> int:
            differ = [name for name in _AXES if getattr(one, name) != getattr(other, name)]
            return len({"warpgroups" if name == "together" else name for name in differ})

        return [other for other in self.offered if steps(other) == 1]
