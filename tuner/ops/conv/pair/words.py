"""Texts about a pair of convolutions in one CTA."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.plans import ConvPairPlan
from tuner.ops.conv.pair.schedule import ConvPairSchedule


def schedule_words(op: ConvPairOp, one: ConvPairSchedule, workload: Workload) -> list[str]:
    """A schedule's tiles, in sentences."""
    who = "each warpgroup" if one.num_teams > 1 else "the CTA"
    return [
        f"Pair {op.name}: {who} computes the images between both convolutions for {one.rows} x {one.columns} pixels of "
        f"the output, in shared memory, then these pixels. A CTA has {128 * one.warpgroups} threads."
    ]


def explain(
    op: ConvPairOp, schedule: ConvPairSchedule, plan: ConvPairPlan, workload: Workload, gpu: Gpu
) -> Iterator[str]:
    """How the tiles fill the GPU, and what is computed more than once."""
    middle, between = plan.geometry.middle, op.first.out_height * op.first.out_width
    tiles = plan.geometry.tile_rows * plan.geometry.tile_columns
    yield (
        f"Tasks: {op.name} has {plan.num_tiles} tiles in {plan.num_ctas} CTAs on {gpu.num_sms} SMs; the halos make the "
        f"first convolution compute {tiles * middle.rows * middle.columns / between:.2f} times its pixels."
    )
    kib = sum(plan.geometry.filter_bytes) / 1024
    yield f"Each CTA loads all filters, {kib:.0f} KiB, before the previous launch has ended if it is programmatic."


def library_of(recipe: LibraryRecipe | None) -> str:
    """The library that it is compared with."""
    return "cuDNN"


def order_of_sums(op: ConvPairOp, one: ConvPairSchedule) -> str:
    """What determines a row's bits: the schedule does not affect them."""
    return ""
