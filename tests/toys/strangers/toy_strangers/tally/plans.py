"""One CTA per row, in an order given by the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toy_strangers.tally.op import TallyOp
from toy_strangers.tally.schedule import TallySchedule
from tuner.extend import Bound, Box, BoxRead, Extent, Gpu, RunTimeInput, TileSpace, whole


@dataclass(frozen=True, kw_only=True)
class TallyPlan:
    """Rows by CTA."""

    rows: tuple[int, ...]

    @property
    def num_ctas(self) -> int:
        """The CTAs of the launch."""
        return len(self.rows)


def plan_of(op: TallyOp, schedule: TallySchedule, gpu: Gpu) -> TallyPlan:
    """The last row first."""
    return TallyPlan(rows=tuple(reversed(range(op.m))))


def spaces_of(op: TallyOp, schedule: TallySchedule, plan: TallyPlan) -> Sequence[TileSpace]:
    """Each CTA updates its row of the state."""
    rows = np.array(plan.rows, dtype=np.int64)
    row = Extent(axes=(0,), begin=rows, end=rows + 1)
    boxes = [Box(tensor=name, extents=(row, whole(op.k))) for name in (op.name, f"{op.name}.state", op.source)]
    reads = tuple(BoxRead(box=box) for box in boxes[1:])
    least, most = op.counts
    count = RunTimeInput(name=f"{op.name}.count", count=1, least=least, most=most)
    return [
        TileSpace(
            name=op.name,
            grid=(plan.num_ctas, 1),
            num_steps=1,
            writes=tuple(boxes[:2]),
            reads=reads,
            bounds=(Bound(tensor=op.source, dimension=0, limit=count),),
        )
    ]
