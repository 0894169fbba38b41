"""Cost models of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from toy_pairs.op import PairsOp
from tuner.extend import Dtype, Gpu, Tile, Workload, rates_of

#: Elements that an SM compares per clock.
_LANES = 64


def task_us(op: PairsOp, tile: Tile, chosen: None, dtype: Dtype, gpu: Gpu) -> float:
    """A task's microseconds: one comparison per element."""
    return tile.m * tile.n / _LANES / gpu.clock_mhz


def library_us(ops: Sequence[PairsOp], workload: Workload, gpu: Gpu) -> float:
    """The microseconds of a separate kernel for each op: a launch, and its bytes."""
    num_bytes = sum(3 * op.m * op.n for op in ops) * workload.dtype.size_bytes
    return len(ops) * rates_of(gpu).launch_us + 1e6 * num_bytes / gpu.dram_bytes_per_s
