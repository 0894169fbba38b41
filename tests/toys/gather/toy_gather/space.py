"""The schedule space of a gather."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

from toy_gather.op import GatherOp
from toy_gather.rules import refuse
from toy_gather.schedule import ROWS_PER_CTA, THREADS, GatherSchedule
from tuner.extend import Gpu, Workload


@dataclass(frozen=True, kw_only=True)
class OpSpace:
    """The space of one gather of a workload."""

    workload: Workload
    gpu: Gpu
    op: GatherOp

    @cached_property
    def offered(self) -> tuple[GatherSchedule, ...]:
        """All legal schedules."""
        found = (GatherSchedule(threads=t, rows_per_cta=r) for t, r in product(THREADS, ROWS_PER_CTA))
        return tuple(one for one in found if refuse(self.workload, self.gpu, self.op, one) is None)

    def near(self, one: GatherSchedule) -> list[GatherSchedule]:
        """The legal schedules that differ from `one` in exactly one axis."""
        return [
            other
            for other in self.offered
            if (other.threads == one.threads) != (other.rows_per_cta == one.rows_per_cta)
        ]
