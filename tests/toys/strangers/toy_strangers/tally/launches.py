"""The launch."""

from __future__ import annotations

import numpy as np

from toy_strangers.tally.op import TallyOp
from toy_strangers.tally.plans import TallyPlan
from toy_strangers.tally.schedule import TallySchedule
from tuner.extend import OpLaunch, OpLaunches, Workload, number, pointer, table


def launches_of(op: TallyOp, schedule: TallySchedule, plan: TallyPlan, workload: Workload) -> OpLaunches:
    """`TallyArgs` is in the source; the kernel itself waits for the previous launch."""
    launch = OpLaunch(
        kernel="tally",
        num_ctas=plan.num_ctas,
        num_threads=schedule.threads,
        waits=True,
        fields=(
            pointer("x", op.source),
            pointer("state", f"{op.name}.state"),
            pointer("count", f"{op.name}.count"),
            table("rows", np.array(plan.rows, dtype="<i4").tobytes()),
            pointer("out", op.name),
            number("half", 0.5, "float32"),
        ),
    )
    return OpLaunches(launches=(launch,))
