"""The plan of a gather: rows by CTA; rows beyond the count are zeroed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toy_gather.op import GatherOp
from toy_gather.schedule import GatherSchedule
from tuner.extend import Box, BoxRead, Extent, Gpu, TileSpace, whole


@dataclass(frozen=True, kw_only=True)
class GatherPlan:
    """A grid of CTAs."""

    num_ctas: int
    rows_per_cta: int

    def rows_of(self, cta: int, op: GatherOp) -> range:
        """The rows that a CTA writes."""
        return range(cta * self.rows_per_cta, min((cta + 1) * self.rows_per_cta, op.m))


def plan_of(op: GatherOp, schedule: GatherSchedule, gpu: Gpu) -> GatherPlan:
    """Assigns rows in order, `rows_per_cta` to each CTA."""
    return GatherPlan(num_ctas=-(-op.m // schedule.rows_per_cta), rows_per_cta=schedule.rows_per_cta)


def spaces_of(op: GatherOp, schedule: GatherSchedule, plan: GatherPlan) -> Sequence[TileSpace]:
    """A CTA writes its rows completely, from the same rows of x and any rows of the table."""
    rows = [plan.rows_of(cta, op) for cta in range(plan.num_ctas)]
    begin, end = (
        np.array([side(one) for one in rows], dtype=np.int64) for side in (lambda r: r.start, lambda r: r.stop)
    )
    own = Extent(axes=(0,), begin=begin, end=end)
    x, table = (op.source, own), (f"{op.name}.table", whole(op.table_rows))
    reads = tuple(BoxRead(box=Box(tensor=name, extents=(extent, whole(op.n)))) for name, extent in (x, table))
    written = Box(tensor=op.name, extents=(own, whole(op.n)))
    return [TileSpace(name=op.name, grid=(plan.num_ctas, 1), num_steps=1, writes=(written,), reads=reads)]
