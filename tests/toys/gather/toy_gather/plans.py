"""What a launch of a gather runs: rows by CTA, of which those behind the count are zeroed."""

from __future__ import annotations

from dataclasses import dataclass

from toy_gather.op import GatherOp
from toy_gather.schedule import GatherSchedule
from tuner.core.problem.gpu import Gpu


@dataclass(frozen=True, kw_only=True)
class GatherPlan:
    """A grid of CTAs."""

    num_ctas: int
    rows_per_cta: int

    def rows_of(self, cta: int, op: GatherOp) -> range:
        """The rows that a CTA writes."""
        return range(cta * self.rows_per_cta, min((cta + 1) * self.rows_per_cta, op.m))


def plan_of(op: GatherOp, schedule: GatherSchedule, gpu: Gpu) -> GatherPlan:
    """Rows in order, so many a CTA."""
    return GatherPlan(num_ctas=-(-op.m // schedule.rows_per_cta), rows_per_cta=schedule.rows_per_cta)
