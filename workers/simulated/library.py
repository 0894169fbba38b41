"""What a vendor library would take: a model, which the twin measures candidates against."""

from __future__ import annotations

import math

from tuner.core.model.bounds import reference_us
from tuner.core.model.task_costs import L2_BYTES_PER_CLOCK
from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import GemmOp, Workload

from ..source.library_epilogue import split_epilogue

#: Share of a data sheet's rates that a vendor library reaches on large GEMMs.
LIBRARY_DRAM_EFFICIENCY = 0.88
LIBRARY_TENSOR_EFFICIENCY = 0.75
#: Start of one of its launches in a graph.
LIBRARY_LAUNCH_US = 2.0
#: Of its flash decoding, the sums over splits.
LIBRARY_COMBINE_US = 1.0
#: Tile of the library's kernels, and the most that an unfilled last wave costs it (it splits k).
LIBRARY_TILE = 128
LIBRARY_WORST_WAVE = 1.3


def library_us(workload: Workload, gpu: Gpu) -> float:
    """A vendor library's time for the ops, one after the other. It is a roofline with an efficiency that falls where
    the library's tiles do not fill the last wave. What its epilogue cannot do takes one launch more."""
    launches_us = [_library_op_us(op, workload, gpu) for op in workload.ops]
    for op in workload.attentions:
        launches_us += _library_attention_us(op, gpu)
    launches_us += [_elementwise_us(op, workload, gpu) for op in workload.ops if split_epilogue(op)[1]]
    return max(sum(launches_us) + LIBRARY_LAUNCH_US * len(launches_us), reference_us(workload, gpu))


def _library_attention_us(op: AttentionOp, gpu: Gpu) -> list[float]:
    """Flash decoding: a launch over splits of the whole cache, masked where lengths differ, and one that adds up."""
    num_bytes = op.shape.cache_bytes(op.shape.sequences * op.shape.max_length)
    return [1e6 * num_bytes / (gpu.dram_bytes_per_s * LIBRARY_DRAM_EFFICIENCY), LIBRARY_COMBINE_US]


def _library_op_us(op: GemmOp, workload: Workload, gpu: Gpu) -> float:
    num_bytes = (op.weight_rows * op.k + op.m * op.k + op.m * op.weight_rows) * workload.dtype.size_bytes
    num_tiles = math.ceil(op.m / LIBRARY_TILE) * math.ceil(op.weight_rows / LIBRARY_TILE)
    waves = num_tiles / gpu.num_sms
    wave_loss = min(math.ceil(waves) / waves, LIBRARY_WORST_WAVE)
    dram_s = num_bytes / (gpu.dram_bytes_per_s * LIBRARY_DRAM_EFFICIENCY)
    tensor_s = op.num_flops / (gpu.tensor_flops_per_s * LIBRARY_TENSOR_EFFICIENCY)
    return max(dram_s, tensor_s) * wave_loss * 1e6


def _elementwise_us(op: GemmOp, workload: Workload, gpu: Gpu) -> float:
    """One pass over the sums and the output, which the L2 holds where they fit."""
    num_bytes = op.m * (op.weight_rows + op.result_columns) * workload.dtype.size_bytes + op.epilogue_bytes(
        workload.dtype
    )
    l2_bytes_per_s = gpu.num_sms * L2_BYTES_PER_CLOCK * gpu.clock_mhz * 1e6
    rate = l2_bytes_per_s if num_bytes <= gpu.l2_bytes // 2 else gpu.dram_bytes_per_s * LIBRARY_DRAM_EFFICIENCY
    return 1e6 * num_bytes / rate
