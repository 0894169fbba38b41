"""Cost models of a depthwise convolution."""

from __future__ import annotations

from collections.abc import Sequence

from toy_depthwise.op import DepthwiseOp
from toy_depthwise.schedule import DepthwiseSchedule
from tuner.extend import Dtype, Gpu, Tile, Workload, rates_of

#: Shared-memory reads, conversions and additions of an SM per clock.
_LANES = 64


def task_us(op: DepthwiseOp, tile: Tile, chosen: DepthwiseSchedule | None, dtype: Dtype, gpu: Gpu) -> float:
    """A task's microseconds: a tap of an element is a read and an addition; rows that a thread computes at once share
    reads."""
    rows_at_once = chosen.rows_at_once if chosen else 1
    reads = tile.m * tile.n * (rows_at_once + 2 * op.radius) / rows_at_once
    sums = tile.m * tile.n * op.taps
    return (reads + sums) / _LANES / gpu.clock_mhz


def library_us(ops: Sequence[DepthwiseOp], workload: Workload, gpu: Gpu) -> float:
    """The microseconds of a separate kernel for each op: a launch, and its bytes."""
    num_bytes = sum(2 * op.m * op.n for op in ops) * workload.dtype.size_bytes
    return len(ops) * rates_of(gpu).launch_us + 1e6 * num_bytes / gpu.dram_bytes_per_s
