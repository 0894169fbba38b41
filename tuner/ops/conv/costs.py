"""A model of the vendor library's run time for convolutions, for comparison on the simulated GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.core.model.rates import rates_of
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.ops.conv.op import ConvOp

#: Microseconds until a launch has started and its first bytes have arrived.
_START_US = 4.5
#: Elements of a step through a filter, and the step's time; a CTA performs these steps sequentially.
_STEP_ELEMENTS, _STEP_US = 64, 0.11
#: Tile of the library's kernels, the share of the tensor cores' data-sheet rate that they reach, and the maximum factor
#: by which a partial last wave slows them down.
_TILE, _TENSOR_SHARE, _WORST_WAVE = 128, 0.75, 1.3


def library_us(ops: Sequence[ConvOp], workload: Workload, gpu: Gpu) -> float:
    """The time of one fused kernel per op: the longest of the times for its bytes, its products, and the steps of a
    tile.

    The constants are those of cuDNN's pairs on an H200: 10 to 25 us at one image, and the tensor cores' rate at 32.
    With 64 filters, half of a tile's columns are empty.
    """
    return sum(_conv_us(op, workload, gpu) for op in ops)


def _conv_us(op: ConvOp, workload: Workload, gpu: Gpu) -> float:
    size, flops_per_s = workload.dtype.size_bytes, gpu.tensor_flops_per_s * workload.dtype.row.tensor_speed
    elements = math.prod(op.source_shape) + op.filters * op.k + op.m * op.filters * (1 + op.residual)
    stream_us = 1e6 * elements * size / (gpu.dram_bytes_per_s * rates_of(gpu).dram_share)
    waves = math.ceil(op.m / _TILE) * math.ceil(op.filters / _TILE) / gpu.num_sms
    wave_loss = min(math.ceil(waves) / waves, _WORST_WAVE)
    padded = math.ceil(op.filters / _TILE) * _TILE / op.filters
    products_us = 1e6 * op.num_flops * padded / (flops_per_s * _TENSOR_SHARE) * wave_loss
    steps_us = math.ceil(op.k / _STEP_ELEMENTS) * _STEP_US
    return _START_US + max(stream_us, products_us, steps_us)
