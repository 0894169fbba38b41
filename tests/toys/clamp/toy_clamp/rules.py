"""Which engines run its tasks, and the resources of a CTA."""

from __future__ import annotations

from toy_clamp.op import ClampOp
from tuner.extend import Dtype, Gpu, Resources, Tile, TileOpSchedule, Workload

ENGINES = ("mma", "simt", "wgmma")


def refuse(workload: Workload, gpu: Gpu, op: ClampOp, schedule: TileOpSchedule) -> str | None:
    """Refuses nothing: the kind has no schedule axes of its own."""
    return None


def resources_of(op: ClampOp, tile: Tile, chosen: None, dtype: Dtype, num_threads: int) -> Resources:
    """No shared memory."""
    return Resources(num_threads=num_threads, smem_bytes=0, registers_per_thread=32)
