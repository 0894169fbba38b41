"""Runs a plan's words on small NumPy matrices, in a random interleaving that the plan allows.

The judge's judge: it reads the words with code of its own. Outputs are NaN before each launch, so a tile that is
computed on what is not there yet shows in the result. A task waits before each of its k-steps for what the plan says,
and adds the step's product to its sums. The parts of a tile leave their sums side by side; the last of them adds them
up, in the order of their numbers, and posts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner.core.plan.header import STATIC
from tuner.core.plan.tile_graph import Region, TileGraph
from tuner.core.plan.words import EPILOGUE_STEP, Plan
from tuner.core.problem.workload import Activation, GemmOp, Workload
from tuner.core.proof.liveness import task_name
from tuner.errors import LivenessError

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
    """[m, 1] what the norm of an op multiplies its rows by, where `squares` [slots, m] has shares of their squares."""
    return np.asarray(1 / np.sqrt(squares.sum(axis=0) / op.k + op.eps))[:, None]


def _turned(op: GemmOp, halves: Sequence[Matrix], angles: Matrix, columns: slice) -> Matrix:
    """Pairs of some columns as complex numbers: queries' and keys' are turned by the angles of their rows."""
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
    """Outputs of the launch's ops, by name, after `num_launches` launches that keep their signals.

    At a time one CTA, drawn from those whose next k-step's waits are over, computes that step on what is in memory
    then. Behind its last one it stores the tile, when the waits of its epilogue are over. `num_resident` CTAs hold
    tasks at a time: fewer than the grid is for tickets only.

    Raises:
        LivenessError: CTAs hold tasks, and none can go on.
    """
    plan = Plan.from_words(plan.words)
    graph = graph.with_parts(strided=plan.strided_parts).with_in_band(plan.in_band_ops)
    memory = {name: array.copy() for name, array in tensors.items()}
    signals = np.zeros(plan.num_signals, dtype=np.int64)
    for epoch in range(num_launches):
        for index in graph.op_indices:
            op = graph.workload.tile_ops[index]
            memory[op.name] = np.full((op.m, op.n), np.nan, dtype=complex if op.rotary else float)
            if graph.workload.writes_squares(index):
                memory[f"{op.name}.squares"] = np.full((graph.grids[index][1], op.m), np.nan)
        _launch(plan, graph, memory, signals, epoch, rng, num_resident or plan.num_ctas)
    return {
        graph.workload.tile_ops[index].name: memory[graph.workload.tile_ops[index].name] for index in graph.op_indices
    }


def _launch(
    plan: Plan,
    graph: TileGraph,
    memory: dict[str, Matrix],
    signals: npt.NDArray[np.int64],
    epoch: int,
    rng: random.Random,
    num_resident: int,
) -> None:
    """One launch, on `memory` and `signals`."""
    if plan.assignment == STATIC:
        queues = [list(range(a, b)) for a, b in zip(plan.queues[:-1].tolist(), plan.queues[1:].tolist(), strict=True)]
    else:
        queues = [list(range(plan.num_tasks))] * num_resident  # one list that all CTAs draw from
    partial: dict[int, dict[int, list[Matrix]]] = {}
    held = [_begin(plan, graph, queue) for queue in queues]
    while any(task is not None for task in held):
        cta, task = -1, None
        for cta in rng.sample(range(len(held)), len(held)):
            task = held[cta]
            if task is not None and _is_ready(plan, graph, memory, task, signals, epoch):
                break
        else:
            stuck = ", ".join(task_name(plan, graph, task.index) for task in held if task is not None)
            raise LivenessError("the plan deadlocks", f"none of these can go on: {stuck}")
        assert task is not None
        if task.done < len(task.steps):
            _multiply(plan, graph, memory, task)
        if task.done < len(task.steps) or not _is_ready(plan, graph, memory, task, signals, epoch):
            continue
        post = plan.tasks[task.index, 5]
        if _store(plan, graph, memory, partial, task) and post >= 0:
            signals[post] += 1
        held[cta] = _begin(plan, graph, queues[cta])


@dataclass(kw_only=True)
class _Held:
    """A task that a CTA is at."""

    #: In the plan.
    index: int
    #: Its k-steps, of all that the op's tiles have; how many of them are done.
    steps: range
    done: int
    #: [halves of W] the sums so far.
    sums: list[Matrix]


def _begin(plan: Plan, graph: TileGraph, queue: list[int]) -> _Held | None:
    if not queue:
        return None
    index = queue.pop(0)
    op, *_, num_parts, _, first, num_steps = plan.tasks[index].tolist()
    stride = num_parts if plan.strided_parts else 1
    steps = range(first, first + stride * num_steps, stride) if num_parts else graph.steps(op)
    return _Held(index=index, steps=steps, done=0, sums=[])


def _is_ready(
    plan: Plan,
    graph: TileGraph,
    memory: Mapping[str, Matrix],
    task: _Held,
    signals: npt.NDArray[np.int64],
    epoch: int,
) -> bool:
    """Whether what the plan says of the task's next k-step, and of those before, has come; behind the last one what it
    says of the epilogue. What is read in band says so itself."""
    op, tile_m, tile_n = plan.tasks[task.index, :3].tolist()
    if plan.in_band_ops >> op & 1 and task.done < len(task.steps):
        rows, *_ = graph.reads(op, tile_m, tile_n, task.steps[task.done])
        if np.isnan(_block(memory, rows)).any():
            return False
    reached = EPILOGUE_STEP if task.done == len(task.steps) else task.done
    waits = plan.waits[plan.tasks[task.index, 3] : plan.tasks[task.index, 4]].tolist()
    return all(
        bool((signals[begin:end] - epoch * per_launch >= threshold).all())
        for begin, end, threshold, per_launch, step in waits
        if step <= reached
    )


def _multiply(plan: Plan, graph: TileGraph, memory: dict[str, Matrix], task: _Held) -> None:
    """One k-step, on what is in memory now."""
    op, tile_m, tile_n = plan.tasks[task.index, :3].tolist()
    rows, *others = graph.reads(op, tile_m, tile_n, task.steps[task.done])
    weights = others[: graph.workload.tile_ops[op].rows_per_column]
    products = [_block(memory, rows) @ _block(memory, region).T for region in weights]
    task.sums = [old + new for old, new in zip(task.sums, products, strict=True)] if task.sums else products
    task.done += 1


def _store(
    plan: Plan,
    graph: TileGraph,
    memory: dict[str, Matrix],
    partial: dict[int, dict[int, list[Matrix]]],
    task: _Held,
) -> bool:
    """Stores a tile whose sums are complete; of a part, leaves its sums and stores the tile if it is the last. Whether
    the tile is stored."""
    index, tile_m, tile_n, _, _, _, part, num_parts, slot, *_ = plan.tasks[task.index].tolist()
    op, out = graph.workload.tile_ops[index], graph.writes(index, tile_m, tile_n)
    _, *others = graph.reads(index, tile_m, tile_n)
    arrived = partial.setdefault(slot, {}) if num_parts else {}
    arrived[part] = task.sums
    if len(arrived) < num_parts:
        return False
    rows = slice(out.row_begin, out.row_end)
    scale = memory[f"{op.name}.row_scale"][rows, None] if op.row_scale else 1.0
    if op.norm and f"{op.norm}.squares" in memory:
        scale = _factors(op, memory[f"{op.norm}.squares"][:, rows])
    elif op.norm:
        scale = _factors(op, (memory[op.norm][rows] ** 2).sum(axis=1)[None])
    sums = []
    for half, region in enumerate(others[: op.rows_per_column]):
        bias = memory[f"{op.name}.bias"][region.row_begin : region.row_end] if op.bias else 0.0
        product = sum((arrived[number][half] for number in range(1, num_parts)), start=arrived[0][half])
        sums.append(scale * product + bias)
    if op.rotary:
        angles = memory[f"{op.name}.angles"][rows]
        _block(memory, out)[...] = _turned(op, sums, angles, slice(out.col_begin, out.col_end))
        return True
    tile = _activated(op.activation, sums[0])
    if op.gated:
        tile = tile * sums[1]
    if op.residual:
        tile = tile + _block(memory, others[-1])
    _block(memory, out)[...] = tile
    if graph.workload.writes_squares(index):
        memory[f"{op.name}.squares"][tile_n, rows] = (tile**2).sum(axis=1)
    return True


def _block(memory: Mapping[str, Matrix], region: Region) -> Matrix:
    return memory[region.tensor][region.row_begin : region.row_end, region.col_begin : region.col_end]
