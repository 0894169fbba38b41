"""Its costs, for the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from toy_clamp.op import ClampOp
from tuner.extend import Dtype, Gpu, Tile, Workload, rates_of


def task_us(op: ClampOp, tile: Tile, chosen: None, dtype: Dtype, gpu: Gpu) -> float:
    """An SM reads and writes about 64 elements per clock."""
    return 2 * tile.m * tile.n / 64 / gpu.clock_mhz


def library_us(ops: Sequence[ClampOp], workload: Workload, gpu: Gpu) -> float:
    """A separate kernel for each op: a launch, and its bytes."""
    num_bytes = sum(2 * op.m * op.n for op in ops) * workload.dtype.size_bytes
    return len(ops) * rates_of(gpu).launch_us + 1e6 * num_bytes / gpu.dram_bytes_per_s
