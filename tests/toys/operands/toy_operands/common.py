"""Code shared by the three kinds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from tuner.extend import Dtype, Gpu, Resources, Tile, TileOp, TileOpSchedule, Workload, rates_of

ENGINES = ("mma", "simt", "wgmma")


def refuse(workload: Workload, gpu: Gpu, op: TileOp, schedule: TileOpSchedule) -> str | None:
    """Refuses nothing: the kinds have no schedule axes of their own."""
    return None


def resources_of(op: TileOp, tile: Tile, chosen: None, dtype: Dtype, num_threads: int) -> Resources:
    """No shared memory."""
    return Resources(num_threads=num_threads, smem_bytes=0, registers_per_thread=32)


def task_us(op: TileOp, tile: Tile, chosen: None, dtype: Dtype, gpu: Gpu) -> float:
    """A task's microseconds: an SM reads and writes about 64 elements per clock."""
    return 4 * tile.m * tile.n / 64 / gpu.clock_mhz


def library_us(ops: Sequence[TileOp], workload: Workload, gpu: Gpu) -> float:
    """The microseconds of a separate kernel for each op: a launch, and its bytes."""
    num_bytes = sum(tensor.num_bytes for op in ops for tensor in op.tensors(workload.dtype))
    return len(ops) * rates_of(gpu).launch_us + 1e6 * num_bytes / gpu.dram_bytes_per_s


def digest(text: str) -> str:
    """The version of a device text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def wide(xp: Any, values: Any, roundoff: float, off: Any) -> Any:
    """The error bound of elements."""
    return xp.abs(values) * roundoff if off is None else off.astype(xp.float64)
