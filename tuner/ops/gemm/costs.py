"""A model of the vendor library's run time for products, for comparison on the simulated GPU.

A kernel of the library takes the longer of the times for its bytes and for its products, plus an overhead: its start
after the previous kernel, its first bytes, its last tiles. These times are fitted to measurements on an H100 and an
H200 (docs/simulator.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.core.model.rates import rates_of
from tuner.core.model.task_costs import L2_BYTES_PER_CLOCK
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.ops.gemm.op import GemmOp
from tuner.workers.source.library_epilogue import split_epilogue

#: Share of the tensor cores' data-sheet rate that a vendor library reaches on large products.
LIBRARY_TENSOR_EFFICIENCY = 0.75
#: Rate at which weights stream, as a share of the simulated memory's rate; on Hopper, that is 0.80 of the data sheet's.
#: On a card the library reaches 0.88. But with few rows, forecasts of our best kernels are too long by the same factor,
#: and the speed-up is what counts.
LIBRARY_STREAM_SHARE = 0.93
#: The overhead of a kernel besides bytes and products: of a product, a norm, and an elementwise pass.
LIBRARY_PRODUCT_US = 3.1
LIBRARY_NORM_US = 5.0
LIBRARY_ELEMENTWISE_US = 2.0
#: Tile of the library's kernels, and the maximum slowdown by an unfilled last wave (the library splits k).
LIBRARY_TILE = 128
LIBRARY_WORST_WAVE = 1.3


def library_us(ops: Sequence[GemmOp], workload: Workload, gpu: Gpu) -> float:
    """The time of all kernels in sequence: norms, products, and what the products' epilogues cannot do. Independent
    products run side by side, so the overhead of a start is counted once."""
    products_us = [_product_us(op, workload, gpu) for op in ops]
    num_starts = 1 if workload.is_independent else len(products_us)
    normed = {(op.norm, op.eps): op for op in ops if op.norm}
    others_us = [
        *(_norm_us(op, workload, gpu) for op in normed.values()),
        *(_elementwise_us(op, workload, gpu) for op in ops if split_epilogue(op)[1]),
    ]
    return sum(products_us) + num_starts * LIBRARY_PRODUCT_US + sum(others_us)


def _product_us(op: GemmOp, workload: Workload, gpu: Gpu) -> float:
    """Time of a product: a roofline whose tensor rate falls if the library's tiles do not fill the last wave; weights
    stream at the same rate."""
    dtype = workload.dtype
    num_bytes = (op.weight_rows + op.m) * op.k * dtype.size_bytes + op.m * op.weight_rows * dtype.sums.size_bytes
    num_tiles = math.ceil(op.m / LIBRARY_TILE) * math.ceil(op.weight_rows / LIBRARY_TILE)
    waves = num_tiles / gpu.num_sms
    wave_loss = min(math.ceil(waves) / waves, LIBRARY_WORST_WAVE)
    tensor_s = op.num_flops / (gpu.tensor_flops_per_s * dtype.row.tensor_speed * LIBRARY_TENSOR_EFFICIENCY)
    return max(_stream_us(num_bytes, gpu), 1e6 * tensor_s * wave_loss)


def _norm_us(op: GemmOp, workload: Workload, gpu: Gpu) -> float:
    """Time of a norm's kernel, which reads the op's input and writes the normalized rows."""
    return LIBRARY_NORM_US + _pass_us(2 * op.m * op.k * workload.dtype.size_bytes, gpu)


def _elementwise_us(op: GemmOp, workload: Workload, gpu: Gpu) -> float:
    """Time of a pass over the sums and the output."""
    dtype = workload.dtype
    num_bytes = op.m * (op.weight_rows * dtype.sums.size_bytes + op.result_columns * op.stored_in(dtype).size_bytes)
    return LIBRARY_ELEMENTWISE_US + _pass_us(num_bytes + op.epilogue_bytes(workload.dtype), gpu)


def _pass_us(num_bytes: int, gpu: Gpu) -> float:
    """The time of a pass over the output of the kernel before it, which is in the L2 if it fits."""
    if num_bytes > gpu.l2_bytes // 2:
        return _stream_us(num_bytes, gpu)
    return 1e6 * num_bytes / (gpu.num_sms * L2_BYTES_PER_CLOCK * gpu.clock_mhz * 1e6)


def _stream_us(num_bytes: int, gpu: Gpu) -> float:
    """The time to stream from the simulated GPU's memory, at the forecasts' rate."""
    return 1e6 * num_bytes / (gpu.dram_bytes_per_s * rates_of(gpu).dram_share * LIBRARY_STREAM_SHARE)
