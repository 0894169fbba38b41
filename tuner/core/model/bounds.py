"""Lower bounds of a workload's time and traffic on a GPU: roofline, whole waves of tiles, red-blue pebbling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from tuner.core.model.task_costs import multiplied_by
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.plan.order.split_tasks import parted
from tuner.core.plan.table.words import Words
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput


def dram_us(workload: Workload, gpu: Gpu) -> float:
    """Time to move the compulsory bytes once at the data sheet's DRAM rate, microseconds."""
    return 1e6 * workload.compulsory_bytes / gpu.dram_bytes_per_s


def tensor_us(workload: Workload, gpu: Gpu) -> float:
    """Time of the products at the data sheet's dense tensor-core rate, microseconds."""
    return 1e6 * workload.num_flops / (gpu.tensor_flops_per_s * workload.dtype.row.tensor_speed)


def reference_us(workload: Workload, gpu: Gpu) -> float:
    """The roofline: with cold caches no schedule is faster, microseconds.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """
    return max(dram_us(workload, gpu), tensor_us(workload, gpu))


@dataclass(frozen=True, kw_only=True)
class Waves:
    """How equal tasks fill a grid of CTAs."""

    #: Tasks, >= 1.
    num_tasks: int
    #: CTAs that work at the same time, >= 1.
    num_ctas: int

    @property
    def num_waves(self) -> int:
        """Waves of the grid, the last one counted as a whole."""
        return -(-self.num_tasks // self.num_ctas)

    @property
    def num_in_tail(self) -> int:
        """Tasks of the last wave."""
        return self.num_tasks - (self.num_waves - 1) * self.num_ctas

    @property
    def efficiency(self) -> float:
        """Share of the waves' slots that have a task, in (0, 1]: 1 without a tail effect."""
        return self.num_tasks / (self.num_waves * self.num_ctas)


def wave_us(graph: TileGraph, gpu: Gpu, tasks: Words | None = None) -> float:
    """Tensor-core time of one launch whose tasks are indivisible, microseconds: no assignment to SMs is faster. The
    tasks are those of a plan, or otherwise all tiles, in even parts if their op has parts.

    Some SM computes k + 1 of the k * SMs + 1 longest tasks, so it takes at least k + 1 times the shortest of them;
    another bound is that no SM is ever idle. With one op, the first is its number of waves. Edge tiles are counted as
    whole tiles, and low tiles with the rows that the tensor cores multiply for them.

    Source: Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969 (pigeonhole).
    """
    flops_per_us = gpu.tensor_flops_per_s * graph.workload.dtype.row.tensor_speed / gpu.num_sms / 1e6
    if tasks is None:
        ops = np.concatenate([np.full(rows * cols, op) for op, (rows, cols) in graph.grids.items()])
        tasks = parted(graph, (ops, np.zeros_like(ops), np.zeros_like(ops)))
    tiles = sorted(
        (flops / flops_per_us, count) for op in graph.op_indices for flops, count in _tasks(graph, op, tasks)
    )
    longest = sum(tile_us * count for tile_us, count in tiles) / gpu.num_sms
    num_longer = 0
    for tile_us, count in reversed(tiles):
        num_longer += count
        longest = max(longest, -(-num_longer // gpu.num_sms) * tile_us)
    return longest


def _tasks(graph: TileGraph, op_index: int, tasks: Words) -> Iterator[tuple[int, int]]:
    """(operations of a task, number of such tasks) of the op."""
    op, tile = graph.workload.tile_ops[op_index], graph.tiling.tiles[op_index]
    if not op.IS_PRODUCT:
        yield op.num_flops * tile.m * tile.n // (op.m * op.n), int((tasks[:, 0] == op_index).sum())
        return
    a_rows, b_rows = multiplied_by(graph.tiling, op, tile)
    steps = graph.steps_of(tasks[tasks[:, 0] == op_index])[:, 2]
    for num_steps, count in zip(*np.unique(steps, return_counts=True), strict=True):
        yield 2 * a_rows * b_rows * tile.k * int(num_steps), int(count)


def io_bytes(workload: Workload, cache_bytes: int) -> int:
    """Minimum bytes that any order of the products moves between the memory and a cache of `cache_bytes`.

    A single product of m x n x k moves at least 2 m n k / sqrt(S) elements to load its operands, where S is the number
    of elements in the cache. It always moves both of them at least once. Its output is written once. A fused consumer
    can use its operand once without loading it, when it is computed, which saves at most m k; its producer's output
    need not be written. Traffic of a tensor that several ops read is counted for the first of them. Nothing is computed
    twice.

    Source: Hong, Kung, "I/O complexity: the red-blue pebble game", STOC 1981; the constant: Kwasniewski et al.,
    "Red-blue pebbling revisited: near optimal parallel matrix-matrix multiplication" (COSMA), SC 2019, theorem 1.

    Raises:
        InvalidInput: the cache is too small for one element of each operand.
    """
    size = workload.dtype.size_bytes
    if cache_bytes < 3 * size:
        raise InvalidInput("cache", f"{cache_bytes} bytes cannot hold three elements", f"use at least {3 * size}")
    side, seen, elements = sqrt(cache_bytes / size), set[str](), 0.0
    epilogues = sum(map(workload.own_epilogue_bytes, range(len(workload.tile_ops))))
    for index, op in enumerate(workload.tile_ops):
        weights, inputs = op.weight_bytes(workload.dtype) / size, prod(op.source_shape)
        streamed = 2 * op.m * op.weight_rows * op.k / side if op.is_plain_product else 0.0
        if op.source in seen:
            elements += weights
        elif workload.producer_of(index) is not None:
            elements += max(weights, streamed - inputs)
        else:
            elements += max(weights + inputs, streamed)
        seen.add(op.source)
        given = (read for read in op.reads[1:] if read.field != "norm" and workload.op_index(read.tensor) is None)
        for read in given:
            if read.tensor not in seen:
                elements += read.shape[0] * read.shape[1]
                seen.add(read.tensor)
        elements += op.m * op.result_columns if workload.leaves(op) else 0
    return int(elements) * size + epilogues


def io_us(workload: Workload, gpu: Gpu) -> float:
    """Time of `io_bytes` at the data sheet's DRAM rate, with all on-chip memory as the cache, microseconds."""
    on_chip = gpu.l2_bytes + gpu.num_sms * (gpu.smem_per_sm_bytes + 4 * gpu.registers_per_sm)
    return 1e6 * io_bytes(workload, on_chip) / gpu.dram_bytes_per_s
