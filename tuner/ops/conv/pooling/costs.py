"""The costs of a pooling, for the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.model.rates import rates_of
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile
from tuner.ops.conv.pooling.op import PoolingOp

#: Round trip to the L2, and bytes that an SM reads from there per microsecond.
_TRIP_US, _BYTES_PER_US = 0.7, 60e3
#: Time until a launch of the library has started and its first bytes have arrived.
_START_US = 4.5


def task_us(op: PoolingOp, tile: Tile, chosen: None, dtype: Dtype, gpu: Gpu) -> float:
    """All windows of a tile are read from the L2, each element as often as windows contain it."""
    return _TRIP_US + min(tile.m, op.m) * tile.n * op.kernel**2 * dtype.size_bytes / _BYTES_PER_US


def library_us(ops: Sequence[PoolingOp], workload: Workload, gpu: Gpu) -> float:
    """A kernel for each op: its start, and its bytes."""
    num_bytes = sum(tensor.num_bytes for op in ops for tensor in op.tensors(workload.dtype))
    return len(ops) * _START_US + 1e6 * num_bytes / (gpu.dram_bytes_per_s * rates_of(gpu).dram_share)
