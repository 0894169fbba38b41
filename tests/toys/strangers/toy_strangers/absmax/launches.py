"""Two launches, which share a workspace."""

from __future__ import annotations

from toy_strangers.absmax.op import AbsmaxOp
from toy_strangers.absmax.plans import AbsmaxPlan
from toy_strangers.absmax.schedule import AbsmaxSchedule
from tuner.extend import OpLaunch, OpLaunches, Workload, number, pointer, room


def launches_of(op: AbsmaxOp, schedule: AbsmaxSchedule, plan: AbsmaxPlan, workload: Workload) -> OpLaunches:
    """`PartsArgs` and `ScaleArgs` in the source."""
    parts = OpLaunch(
        kernel="absmax_parts",
        num_ctas=plan.num_ctas,
        num_threads=schedule.threads,
        fields=(pointer("x", op.source), room("parts"), number("columns", plan.columns_per_block)),
    )
    scale = OpLaunch(
        kernel="absmax_scale",
        num_ctas=op.m,
        num_threads=schedule.threads,
        fields=(
            number("blocks", plan.blocks),  # 4 bytes before an address, so the struct has padding after them
            pointer("x", op.source),
            room("parts"),
            pointer("scale", f"{op.name}.scale"),
            pointer("negated", f"{op.name}.negated"),
            pointer("out", op.name),
        ),
    )
    return OpLaunches(launches=(parts, scale), workspace_bytes=4 * plan.num_ctas)
