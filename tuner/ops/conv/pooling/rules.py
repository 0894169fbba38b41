"""Which engines run a pooling's tasks, and the resources of a CTA."""

from __future__ import annotations

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.resources import Resources
from tuner.core.problem.workload import Workload
from tuner.core.schedule.levels import TileOpSchedule
from tuner.core.schedule.tiling import Tile
from tuner.ops.conv.pooling.op import PoolingOp

ENGINES = ("mma", "simt", "wgmma")


def refuse(workload: Workload, gpu: Gpu, op: PoolingOp, schedule: TileOpSchedule) -> str | None:
    """Refuses nothing: this kind of op has no axes of its own."""
    return None


def resources_of(op: PoolingOp, tile: Tile, chosen: None, dtype: Dtype, num_threads: int) -> Resources:
    """No shared memory."""
    return Resources(num_threads=num_threads, smem_bytes=0, registers_per_thread=64)
