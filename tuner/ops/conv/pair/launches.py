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
        pointer(name, f"{op.name}.{tensor}") if op.bias or not tensor.endswith("bias") else null(name, "no bias")
        for name, tensor in (
            ("first", "first_weight"),
            ("first_bias", "first_bias"),
            ("second", "second_weight"),
            ("second_bias", "second_bias"),
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
        ),
    )
    return OpLaunches(launches=(launch,))
