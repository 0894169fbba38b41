"""Which schedules of a depthwise convolution are legal, and the resources of a CTA."""

from __future__ import annotations

from toy_depthwise.op import DepthwiseOp
from toy_depthwise.schedule import DepthwiseSchedule
from tuner.extend import Dtype, Gpu, Resources, Tile, Workload

#: The engines whose task loop runs it.
ENGINES = ("mma", "simt", "wgmma")
#: Registers of a thread besides a weight per tap, and a sum and a row for each output that it computes at once.
_OTHER_REGISTERS = 40


def refuse(workload: Workload, gpu: Gpu, op: DepthwiseOp, schedule: DepthwiseSchedule) -> str | None:
    """Why a thread cannot compute `rows_at_once` rows at once; None if it can."""
    if schedule.tile.m % schedule.rows_at_once:
        return f"{schedule.rows_at_once} rows at once of {op.name}: its tiles have {schedule.tile.m}, use a divisor"
    return None


def resources_of(
    op: DepthwiseOp, tile: Tile, chosen: DepthwiseSchedule | None, dtype: Dtype, num_threads: int
) -> Resources:
    """The rows of a tile and those around them are in shared memory."""
    rows_at_once = chosen.rows_at_once if chosen else 1
    return Resources(
        num_threads=num_threads,
        smem_bytes=(tile.m + 2 * op.radius) * tile.n * dtype.size_bytes,
        registers_per_thread=_OTHER_REGISTERS + 2 * op.taps + 2 * rows_at_once,
    )
