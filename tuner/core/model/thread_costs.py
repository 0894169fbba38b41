"""Time of a wgmma kernel's math warps besides the products: converting weights, promoting sums, finishing elements.

Clocks are estimates from latencies of instructions and from their numbers in the machine code.
"""

from __future__ import annotations

from tuner.core.legal.warpgroups.parts import column_block, part_multiplies
from tuner.core.legal.warpgroups.workloads import line_elements
from tuner.core.legal.wgmma import WARPS_PER_GROUP, num_accumulators, num_groups, wgmma_columns
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.tile_op import TileOp
from tuner.core.schedule.tiling import Engine

#: For weights stored in fewer bits, by their bits: instructions of a warp for a word of codes of each lane, with the
#: products and the loads of inputs, by the machine code of kernels for 16 rows.
CONVERTING_INSTRUCTIONS = {4: 14.5, 8: 11.6}
#: Shares of clocks in which a scheduler issues one of them, by the number of math warpgroups. Fitted to 112 schedules
#: of four pairs (few_bits_trials.jsonl.gz). Three warpgroups have fewer registers per thread.
ISSUED_SHARES = {1: 0.6, 2: 0.7, 3: 0.6}
_WORD_BITS, _LANES, _SCHEDULERS = 32, 32, 4
#: For each stage of such weights: the wait, two dependent loads from shared memory, the conversion and the product of
#: the first fragments, which nothing overlaps.
CONVERTED_STAGE_CLOCKS = 150
#: For each line of a stage if its sums are promoted before the next line is multiplied: until the tensor cores end. Up
#: to this many sums per thread, the next line is multiplied meanwhile (`kAhead` in mainloop_wgmma.cuh).
PROMOTED_LINE_CLOCKS, SUMS_PROMOTED_MEANWHILE = 90, 32
#: For each sum of a line with swapped operands if a part of the epilogue scales it, while no warpgroup multiplies: two
#: operations of two warps, and loads of scales. Estimated from 0.9 us for a step of 64 rows and 256 rows of weights on
#: an H200 (few_bits.json).
SCALED_SUM_CLOCKS = 10
#: Clocks in which the tensor cores multiply a row of 8-bit weights by 64 rows and a line of 128 elements of k.
_COLUMN_CLOCKS = 2
#: For each element that a thread finishes with parts of an epilogue: loads of factors, activation, division, rounding.
FINISHED_ELEMENT_CLOCKS = 60


def converting_us(op: TileOp, rows: int, depth: int, num_warps: int, gpu: Gpu) -> float:
    """Time in which an SM's math warps convert a stage of weights, if nothing delays them."""
    if not op.weights:
        return 0.0
    bits = op.weights.row.bits
    instructions_per_clock = _SCHEDULERS * _LANES * ISSUED_SHARES[num_warps // WARPS_PER_GROUP]
    num_words: float = rows * depth * bits / _WORD_BITS
    return (num_words * CONVERTING_INSTRUCTIONS[bits] / instructions_per_clock + CONVERTED_STAGE_CLOCKS) / gpu.clock_mhz


def promoting_us(graph: TileGraph, op_index: int, gpu: Gpu) -> float:
    """Time of a k-step in which the tensor cores have nothing to multiply, since sums are promoted: each warpgroup
    adds its sums in turn."""
    op, tiling, dtype = graph.workload.tile_ops[op_index], graph.tiling, graph.workload.dtype
    product = dtype.row.tensor_product
    if op.weights or product is None or product.max_promoted is None:
        return 0.0
    tile, lines = tiling.cta_tiles[op_index], tiling.tiles[op_index].k // line_elements(dtype)
    sums = num_accumulators(op, tile, num_groups(tiling), swap_ab=tiling.swap_ab)
    if not tiling.swap_ab and column_block(op):
        # Each warpgroup multiplies so many columns at a time; meanwhile, the others multiply.
        columns = wgmma_columns(op, tile, dtype, swap_ab=False)
        others = tiling.num_warps // WARPS_PER_GROUP - 1
        idle = PROMOTED_LINE_CLOCKS + columns / 2 - others * columns * _COLUMN_CLOCKS
        is_ahead = columns / 2 <= SUMS_PROMOTED_MEANWHILE
        return 0.0 if is_ahead else lines * 2 * sums / columns * max(0.0, idle) / gpu.clock_mhz
    if sums <= SUMS_PROMOTED_MEANWHILE:
        return 0.0
    if part_multiplies(op):
        return lines * (PROMOTED_LINE_CLOCKS + SCALED_SUM_CLOCKS * sums) / gpu.clock_mhz
    return lines * (PROMOTED_LINE_CLOCKS + sums) / num_groups(tiling) / gpu.clock_mhz


def finishing_us(graph: TileGraph, op_index: int, gpu: Gpu) -> float:
    """Time in which a thread applies the parts of an op's epilogue to its elements. If W is operand B, the threads of
    rows past the last one have none, and the others have as many as if there were 64 rows."""
    op, tiling = graph.workload.tile_ops[op_index], graph.tiling
    if not op.epilogue or tiling.engine is not Engine.WGMMA:
        return 0.0
    sums = num_accumulators(op, tiling.cta_tiles[op_index], num_groups(tiling), swap_ab=tiling.swap_ab)
    elements = sums / op.rows_per_column / tiling.cluster_k
    return FINISHED_ELEMENT_CLOCKS * elements / gpu.clock_mhz
