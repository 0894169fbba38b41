"""What a vendor library would take: a model, which the twin measures candidates against.

Each kernel of the library takes what its bytes or products take, and a time beside these: its start behind the kernel
before it, its first bytes, its last tiles. Those times are fitted to what an H100 and an H200 measured
(docs/simulator.md).
"""

from __future__ import annotations

import math

from tuner.core.model.bounds import reference_us
from tuner.core.model.rates import rates_of
from tuner.core.model.task_costs import L2_BYTES_PER_CLOCK
from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import GemmOp, Workload

from ..source.library_epilogue import split_epilogue

#: Share of a data sheet's rates that a vendor library reaches: of the tensor cores' on large GEMMs, and of the DRAM's
#: on keys and values.
LIBRARY_TENSOR_EFFICIENCY = 0.75
LIBRARY_ATTENTION_EFFICIENCY = 0.9
#: Share of the rate at which the twin's memory streams that weights come at: 0.80 of a data sheet's on Hopper. A card's
#: library reaches 0.88. But forecasts of our best kernels are too long by as much at few rows, and what the twin is
#: asked for is the speed-up.
LIBRARY_STREAM_SHARE = 0.93
#: What a kernel takes beside bytes and products: of a product, a norm, an elementwise pass, an attention.
LIBRARY_PRODUCT_US = 3.1
LIBRARY_NORM_US = 5.0
LIBRARY_ELEMENTWISE_US = 2.0
LIBRARY_ATTENTION_US = 4.6
#: Of an attention with fewer tasks than that share of the SMs: the library splits its tokens, and adds up.
LIBRARY_UNSPLIT_SHARE = 0.8
LIBRARY_SPLIT_US = 3.1
#: Tile of the library's kernels, and the most that an unfilled last wave costs its tensor cores (it splits k).
LIBRARY_TILE = 128
LIBRARY_WORST_WAVE = 1.3


def library_us(workload: Workload, gpu: Gpu) -> float:
    """A vendor library's time for all kernels, one after the other: norms, products, attentions, and what the products'
    epilogues cannot do. Of independent products, which it runs side by side, only one waits for its start."""
    products_us = [_product_us(op, workload, gpu) for op in workload.tile_ops]
    num_starts = 1 if workload.is_independent else len(products_us)
    normed = {(op.norm, op.eps): op for op in workload.tile_ops if op.norm}
    others_us = [
        *(_norm_us(op, workload, gpu) for op in normed.values()),
        *(_attention_us(op, gpu) for op in workload.launch_ops),
        *(_elementwise_us(op, workload, gpu) for op in workload.tile_ops if split_epilogue(op)[1]),
    ]
    return max(sum(products_us) + num_starts * LIBRARY_PRODUCT_US + sum(others_us), reference_us(workload, gpu))


def _product_us(op: GemmOp, workload: Workload, gpu: Gpu) -> float:
    """A roofline whose tensor rate falls where the library's tiles do not fill the last wave; weights stream as fast
    all the same."""
    num_bytes = (op.weight_rows * op.k + op.m * op.k + op.m * op.weight_rows) * workload.dtype.size_bytes
    num_tiles = math.ceil(op.m / LIBRARY_TILE) * math.ceil(op.weight_rows / LIBRARY_TILE)
    waves = num_tiles / gpu.num_sms
    wave_loss = min(math.ceil(waves) / waves, LIBRARY_WORST_WAVE)
    tensor_s = op.num_flops / (gpu.tensor_flops_per_s * LIBRARY_TENSOR_EFFICIENCY)
    return max(_stream_us(num_bytes, gpu), 1e6 * tensor_s * wave_loss)


def _norm_us(op: GemmOp, workload: Workload, gpu: Gpu) -> float:
    """Reads the op's input, and writes it normed."""
    return LIBRARY_NORM_US + _pass_us(2 * op.m * op.k * workload.dtype.size_bytes, gpu)


def _attention_us(op: AttentionOp, gpu: Gpu) -> float:
    """Flash decoding over the whole cache, masked where lengths differ. A task is a KV head of a sequence."""
    shape = op.shape
    num_bytes = shape.cache_bytes(shape.sequences * shape.max_length)
    is_split = shape.sequences * shape.kv_heads < LIBRARY_UNSPLIT_SHARE * gpu.num_sms
    read_us = 1e6 * num_bytes / (gpu.dram_bytes_per_s * LIBRARY_ATTENTION_EFFICIENCY)
    return LIBRARY_ATTENTION_US + read_us + (LIBRARY_SPLIT_US if is_split else 0.0)


def _elementwise_us(op: GemmOp, workload: Workload, gpu: Gpu) -> float:
    """One pass over the sums and the output."""
    num_bytes = op.m * (op.weight_rows + op.result_columns) * workload.dtype.size_bytes
    return LIBRARY_ELEMENTWISE_US + _pass_us(num_bytes + op.epilogue_bytes(workload.dtype), gpu)


def _pass_us(num_bytes: int, gpu: Gpu) -> float:
    """Over what the kernel before has written, which the L2 holds where it fits."""
    if num_bytes > gpu.l2_bytes // 2:
        return _stream_us(num_bytes, gpu)
    return 1e6 * num_bytes / (gpu.num_sms * L2_BYTES_PER_CLOCK * gpu.clock_mhz * 1e6)


def _stream_us(num_bytes: int, gpu: Gpu) -> float:
    """From the twin's memory, whose rate is that of the forecasts."""
    return 1e6 * num_bytes / (gpu.dram_bytes_per_s * rates_of(gpu).dram_share * LIBRARY_STREAM_SHARE)
