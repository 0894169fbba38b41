"""When a schedule of a convolution is legal."""

from __future__ import annotations

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.levels import TileOpSchedule
from tuner.ops.conv.op import ConvOp

#: The engines whose main loop gathers rows of A.
ENGINES = ("mma", "wgmma")


def refuse(workload: Workload, gpu: Gpu, op: ConvOp, schedule: TileOpSchedule) -> str | None:
    """Refuses nothing: this kind of op has no axes of its own."""
    return None
