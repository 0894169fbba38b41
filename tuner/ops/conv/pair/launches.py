"""The launch of a pair of convolutions."""

from __future__ import annotations

from tuner.core.plan.op_launches import OpLaunch, OpLaunches, null, number, pointer
from tuner.core.problem.workload import Workload
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.plans import ConvPairPlan
from tuner.ops.conv.pair.rules import resources_of
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.ops.conv.pair.source import KERNEL


def launches_of(op: ConvPairOp, schedule: ConvPairSchedule, plan: ConvPairPlan, workload: Workload) -> OpLaunches:
    """One launch; `ConvPairArgs` is in the source. Filters and biases are read before the previous launch has ended."""
    resources = resources_of(op, schedule)
    weights = [
        field
        for name, conv in (("first", op.first), ("second", op.second))
        for field in (
            pointer(name, f"{conv.name}.w"),
            pointer(f"{name}_bias", f"{conv.name}.bias") if op.bias else null(f"{name}_bias", "no bias"),
        )
    ]
    launch = OpLaunch(
        kernel=KERNEL,
        num_ctas=plan.num_ctas,
        num_threads=resources.num_threads,
        smem_bytes=resources.smem_bytes,
        waits=True,
        num_tasks=plan.num_tiles,
        fields=(
            pointer("images", op.source),
            *weights,
            pointer("out", op.name),
            number("num_tiles", plan.num_tiles),
            *([pointer("added", op.residual_source)] if op.residual_source else []),
        ),
    )
    return OpLaunches(launches=(launch,))
