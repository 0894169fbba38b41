"""Products computed whole and tile by tile on small NumPy matrices: the arithmetic for `task_machine`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.task_machine import block, launch_plan
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.plan.table.words import Plan
from tuner.core.problem.workload import Activation, Workload
from tuner.ops.gemm.op import GemmOp

Matrix = npt.NDArray[np.float64]


def _activated(activation: Activation, x: Matrix) -> Matrix:
    return np.asarray(activation.row.host(np, x))


def random_tensors(workload: Workload, seed: int) -> dict[str, Matrix]:
    """Inputs, weights, biases, residuals, row scales and squares of inputs of a workload, by tensor name."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Matrix] = {}
    for index, op in enumerate(workload.tile_ops):
        if workload.producer_of(index) is None and op.source not in tensors:
            tensors[op.source] = rng.standard_normal((op.m, op.k))
        tensors[f"{op.name}.weight"] = rng.standard_normal((op.weight_rows, op.k)) / np.sqrt(op.k)
        if op.bias:
            tensors[f"{op.name}.bias"] = rng.standard_normal(op.weight_rows)
        if op.residual and not op.residual_source:
            tensors[f"{op.name}.residual"] = rng.standard_normal((op.m, op.n))
        elif op.residual and workload.residual_producer_of(index) is None and op.residual_source not in tensors:
            tensors[op.residual_source] = rng.standard_normal((op.m, op.n))
        if op.rotary:
            tensors[f"{op.name}.angles"] = rng.uniform(0, 100, (op.m, op.rotary.head_dim // 2))
        if op.row_scale:
            tensors[f"{op.name}.row_scale"] = rng.uniform(0.5, 2.0, op.m)
        if op.norm and workload.norm_producer_of(index) is None:
            tensors[f"{op.norm}.squares"] = op.k * rng.uniform(0.5, 2.0, (1, op.m))
    return tensors


def _factors(op: GemmOp, squares: Matrix) -> Matrix:
    """The factors [m, 1] by which an op's norm multiplies its rows; `squares` [slots, m] has partial sums of their
    squares."""
    return np.asarray(1 / np.sqrt(squares.sum(axis=0) / op.k + op.eps))[:, None]


def _turned(op: GemmOp, halves: Sequence[Matrix], angles: Matrix, columns: slice) -> Matrix:
    """Pairs of columns as complex numbers: those of queries and keys are rotated by the angles of their rows."""
    assert op.rotary is not None
    half = op.rotary.head_dim // 2
    pairs = np.arange(op.n)[columns]
    is_turned = pairs // half < op.rotary.heads + op.rotary.kv_heads
    return np.asarray((halves[0] + 1j * halves[1]) * np.exp(1j * angles[:, pairs % half] * is_turned))


def plain_product(workload: Workload, tensors: Mapping[str, Matrix]) -> dict[str, Matrix]:
    """Every op's output, by name, computed whole and in order."""
    known = dict(tensors)
    for op in workload.tile_ops:
        out = known[op.source] @ known[f"{op.name}.weight"].T
        if op.row_scale:
            out = out * known[f"{op.name}.row_scale"][:, None]
        if op.norm:
            of_input = known.get(f"{op.norm}.squares")
            out = out * _factors(op, (known[op.norm] ** 2).sum(axis=1)[None] if of_input is None else of_input)
        out = out + known.get(f"{op.name}.bias", 0.0)
        if op.rotary:
            out = _turned(op, np.hsplit(out, 2), known[f"{op.name}.angles"], slice(0, op.n))
        elif op.gated:
            gate, up = np.hsplit(out, 2)
            out = _activated(op.activation, gate) * up
        else:
            out = _activated(op.activation, out)
        known[op.name] = out + known.get(op.residual_source or f"{op.name}.residual", 0.0)
    return {op.name: known[op.name] for op in workload.tile_ops}


def interpret(
    plan: Plan,
    graph: TileGraph,
    tensors: Mapping[str, Matrix],
    rng: random.Random,
    *,
    num_resident: int | None = None,
    num_launches: int = 1,
) -> dict[str, Matrix]:
    """Outputs of the launch's ops, by name, after `num_launches` launches that keep their signals, as in `launch_plan`.

    Raises:
        LivenessError: CTAs hold tasks, and none can continue.
    """
    arithmetic = {op: ProductTiles(graph.with_in_band(plan.in_band_ops), op) for op in graph.op_indices}
    memory = launch_plan(plan, graph, arithmetic, tensors, rng, num_resident=num_resident, num_launches=num_launches)
    return {name: memory[name] for name in map(graph.name_of, graph.op_indices)}


class ProductTiles:
    """The arithmetic of one product's tiles."""

    def __init__(self, graph: TileGraph, op_index: int) -> None:
        self.op, self._space = graph.workload.tile_ops[op_index], graph.spaces[op_index]
        self._writes_squares = graph.workload.writes_squares(op_index)
        (self._out,) = self._space.writes
        boxes = [read.box for read in self._space.reads if not read.is_late]
        self._inputs, *self._weights = boxes

    def outputs(self) -> dict[str, Matrix]:
        """C, and the squares of its rows if a norm needs them."""
        made = {self.op.name: np.full((self.op.m, self.op.n), np.nan, dtype=complex if self.op.rotary else float)}
        if self._writes_squares:
            made[f"{self.op.name}.squares"] = np.full((self._space.grid[1], self.op.m), np.nan)
        return made

    def add(self, memory: Mapping[str, Matrix], tile: tuple[int, ...], step: int, sums: Any) -> list[Matrix]:
        """The accumulated products, one array per half of W."""
        rows = block(memory, self._inputs, tile, step)
        products = [rows @ block(memory, weights, tile, step).T for weights in self._weights]
        return [old + new for old, new in zip(sums, products, strict=True)] if sums else products

    def store(self, memory: dict[str, Matrix], tile: tuple[int, ...], parts: list[list[Matrix]]) -> None:
        """Adds up the parts in order and applies the epilogue."""
        op, (rows, columns) = self.op, self._out.at(tile)
        scale = memory[f"{op.name}.row_scale"][rows, None] if op.row_scale else 1.0
        if op.norm and f"{op.norm}.squares" in memory:
            scale = _factors(op, memory[f"{op.norm}.squares"][:, rows])
        elif op.norm:
            scale = _factors(op, (memory[op.norm][rows] ** 2).sum(axis=1)[None])
        sums = []
        for half, weights in enumerate(self._weights):
            bias = memory[f"{op.name}.bias"][weights.at(tile)[0]] if op.bias else 0.0
            sums.append(scale * sum((part[half] for part in parts[1:]), start=parts[0][half]) + bias)
        if op.rotary:
            memory[op.name][rows, columns] = _turned(op, sums, memory[f"{op.name}.angles"][rows], columns)
            return
        made = _activated(op.activation, sums[0]) * (sums[1] if op.gated else 1.0)
        if op.residual:
            made = made + memory[op.residual_source or f"{op.name}.residual"][rows, columns]
        memory[op.name][rows, columns] = made
        if self._writes_squares:
            memory[f"{op.name}.squares"][tile[1], rows] = (made**2).sum(axis=1)
