"""The resources of a CTA for a task of pairs."""

from __future__ import annotations

from toy_pairs.op import PairsOp
from tuner.extend import Dtype, Gpu, Resources, Tile, TileOpSchedule, Workload

#: The engines whose task loop runs it.
ENGINES = ("mma", "simt", "wgmma")


def refuse(workload: Workload, gpu: Gpu, op: PairsOp, schedule: TileOpSchedule) -> str | None:
    """Refuses nothing: the kind has no schedule axes of its own."""
    return None


def resources_of(op: PairsOp, tile: Tile, chosen: None, dtype: Dtype, num_threads: int) -> Resources:
    """No shared memory."""
    return Resources(num_threads=num_threads, smem_bytes=0, registers_per_thread=32)
