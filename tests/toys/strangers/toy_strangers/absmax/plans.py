"""Two launches: over blocks of rows, and over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toy_strangers.absmax.op import AbsmaxOp
from toy_strangers.absmax.schedule import AbsmaxSchedule
from tuner.extend import Box, BoxRead, Extent, Gpu, TileSpace, along, whole


@dataclass(frozen=True, kw_only=True)
class AbsmaxPlan:
    """One CTA for each block of columns of each row, then one per row."""

    rows: int
    blocks: int
    columns_per_block: int

    @property
    def num_ctas(self) -> int:
        """The CTAs of the first launch."""
        return self.rows * self.blocks


def plan_of(op: AbsmaxOp, schedule: AbsmaxSchedule, gpu: Gpu) -> AbsmaxPlan:
    """Blocks of a multiple of eight columns."""
    per_block = -(-op.n // (8 * schedule.blocks)) * 8
    return AbsmaxPlan(rows=op.m, blocks=-(-op.n // per_block), columns_per_block=per_block)


def spaces_of(op: AbsmaxOp, schedule: AbsmaxSchedule, plan: AbsmaxPlan) -> Sequence[TileSpace]:
    """The first launch writes the maximum of each block; the second one reads a row of these."""
    parts, rows = f"{op.name}.parts", along(0, plan.rows, 1)
    begin = plan.columns_per_block * np.arange(plan.blocks, dtype=np.int64)
    columns = Extent(axes=(1,), begin=begin, end=np.minimum(begin + plan.columns_per_block, op.n))
    first = TileSpace(
        name=parts,
        grid=(plan.rows, plan.blocks),
        num_steps=1,
        writes=(Box(tensor=parts, extents=(rows, along(1, plan.blocks, 1))),),
        reads=(BoxRead(box=Box(tensor=op.source, extents=(rows, columns))),),
    )
    second = TileSpace(
        name=op.name,
        grid=(plan.rows, 1),
        num_steps=1,
        writes=(
            Box(tensor=op.name, extents=(rows, whole(op.n))),
            Box(tensor=f"{op.name}.negated", extents=(rows, whole(op.n))),
            Box(tensor=f"{op.name}.scale", extents=(rows,)),
        ),
        reads=tuple(
            BoxRead(box=Box(tensor=name, extents=(rows, whole(size))))
            for name, size in ((op.source, op.n), (parts, plan.blocks))
        ),
    )
    return [first, second]
