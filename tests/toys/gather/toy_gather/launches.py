"""The launch of a gather."""

from __future__ import annotations

from toy_gather.op import GatherOp
from toy_gather.plans import GatherPlan
from toy_gather.schedule import GatherSchedule
from toy_gather.source import KERNEL
from tuner.extend import OpLaunch, OpLaunches, Workload, number, pointer


def launches_of(op: GatherOp, schedule: GatherSchedule, plan: GatherPlan, workload: Workload) -> OpLaunches:
    """One launch, whose threads each process vectors; `GatherArgs` is in the source."""
    launch = OpLaunch(
        kernel=KERNEL,
        num_ctas=plan.num_ctas,
        num_threads=schedule.threads,
        num_tasks=op.m,
        fields=(
            pointer("x", op.source),
            pointer("table", f"{op.name}.table"),
            pointer("rows", f"{op.name}.rows"),
            pointer("count", f"{op.name}.count"),
            pointer("out", op.name),
            number("m", op.m),
        ),
    )
    return OpLaunches(launches=(launch,))
