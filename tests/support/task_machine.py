"""Runs a plan's words on small arrays, in a random interleaving that the plan allows.

It checks the checker: it decodes the words with separate code, and knows only the boxes of an op. An `Arithmetic`
defines what an op computes from their contents. Outputs are NaN before each launch, so a tile computed from missing
data shows in the result. Before each of its steps, a task performs the plan's waits; then it adds what the step reads
to its sums. The parts of a tile store their sums separately; the last of them stores the tile, and posts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.boxes import Box, TileSpace
from tuner.core.plan.graph.tile_graph import TaskGraph
from tuner.core.plan.table.header import STATIC
from tuner.core.plan.table.words import EPILOGUE_STEP, Plan
from tuner.core.proof.liveness import task_name
from tuner.errors import LivenessError

#: An array of any number of dimensions.
Tensor = npt.NDArray[Any]
Memory = dict[str, Tensor]


class Arithmetic(Protocol):
    """What the tiles of an op compute from the contents of their boxes."""

    def outputs(self) -> Memory:
        """The tensors that the tiles write, filled with NaN."""

    def add(self, memory: Mapping[str, Tensor], tile: tuple[int, ...], step: int, sums: Any) -> Any:
        """The sums after one more step of a tile; `sums` is None before the first one."""

    def store(self, memory: Memory, tile: tuple[int, ...], parts: list[Any]) -> None:
        """Stores a tile, given the sums of its parts in order."""


def block(memory: Mapping[str, Tensor], box: Box, tile: tuple[int, ...], step: int = 0) -> Tensor:
    """The contents of a box of a tile, as a view."""
    return memory[box.tensor][box.at(tile, step)]


def left(
    space: TileSpace, box: Box, tile: tuple[int, ...], step: int, values: Mapping[str, Sequence[int]]
) -> tuple[slice, ...]:
    """The part of a tile's box that remains at `values` of the run-time inputs."""
    sides = list(box.at(tile, step))
    for bound in (bound for bound in space.bounds if bound.tensor == box.tensor):
        number = 0 if bound.by is None else sides[bound.by].start
        side = sides[bound.dimension]
        sides[bound.dimension] = slice(side.start, max(side.start, min(side.stop, values[bound.limit.name][number])))
    return tuple(sides)


def is_left(space: TileSpace, box: Box, tile: tuple[int, ...], step: int, values: Mapping[str, Sequence[int]]) -> bool:
    """Whether any part of a tile's box remains."""
    return all(side.start < side.stop for side in left(space, box, tile, step, values))


def launch_plan(
    plan: Plan,
    graph: TaskGraph,
    arithmetic: Mapping[int, Arithmetic],
    tensors: Mapping[str, Tensor],
    rng: random.Random,
    *,
    num_resident: int | None = None,
    num_launches: int = 1,
    values: Mapping[str, Sequence[int]] | None = None,
) -> Memory:
    """All tensors after `num_launches` launches that keep their signals.

    One CTA at a time, drawn from those whose next step's waits have passed, performs that step on the current memory.
    After its last step it stores the tile, when the waits for its late reads have passed. `num_resident` CTAs hold
    tasks at a time; with tickets only, this may be less than the grid. `values` has the run-time inputs. A task skips
    steps that have nothing left, and all steps of a tile with nothing left, including the waits before these; but not
    the waits before the first step.

    Raises:
        LivenessError: CTAs hold tasks, and none can continue.
    """
    plan = Plan.from_words(plan.words)
    graph = graph.with_parts(strided=plan.strided_parts).with_in_band(plan.in_band_ops)
    memory = {name: array.copy() for name, array in tensors.items()}
    signals = np.zeros(plan.num_signals, dtype=np.int64)
    for epoch in range(num_launches):
        for one in arithmetic.values():
            memory |= one.outputs()
        launch = _Launch(plan, graph, arithmetic, memory, signals, epoch, values or {})
        launch.run(rng, num_resident or plan.num_ctas)
    return memory


@dataclass(kw_only=True)
class _Held:
    """A task in progress on a CTA."""

    #: Its index in the plan.
    index: int
    #: The steps of the tile that it performs, and how many of them are done.
    steps: Sequence[int]
    done: int = 0
    sums: Any = None


class _Launch:
    """One launch, on memory and signals."""

    def __init__(
        self,
        plan: Plan,
        graph: TaskGraph,
        arithmetic: Mapping[int, Arithmetic],
        memory: Memory,
        signals: npt.NDArray[np.int64],
        epoch: int,
        values: Mapping[str, Sequence[int]],
    ) -> None:
        self._plan, self._graph, self._arithmetic = plan, graph, arithmetic
        self._memory, self._signals, self._epoch, self._values = memory, signals, epoch, values
        #: Slot -> part -> its sums.
        self._partial: dict[int, dict[int, Any]] = {}

    def run(self, rng: random.Random, num_resident: int) -> None:
        """Runs the launch to its end."""
        plan, queues = self._plan, [list(range(self._plan.num_tasks))] * num_resident  # one list from which all draw
        if plan.assignment == STATIC:
            bounds = plan.queues.tolist()
            queues = [list(range(a, b)) for a, b in pairwise(bounds)]
        held = [self._begin(queue) for queue in queues]
        while any(task is not None for task in held):
            cta, task = -1, None
            for cta in rng.sample(range(len(held)), len(held)):
                task = held[cta]
                if task is not None and self._is_ready(task):
                    break
            else:
                stuck = ", ".join(task_name(plan, self._graph, task.index) for task in held if task is not None)
                raise LivenessError("the plan deadlocks", f"none of these can continue: {stuck}")
            assert task is not None
            op, tile = self._tile_of(task.index)
            if task.done < len(task.steps):
                step = task.steps[task.done]
                task.sums = self._arithmetic[op].add(self._memory, tile, step, task.sums)
                task.done += 1
            if task.done < len(task.steps) or not self._is_ready(task):
                continue
            post = plan.tasks[task.index, 5]
            if self._store(task) and post >= 0:
                self._signals[post] += 1
            held[cta] = self._begin(queues[cta])

    def _begin(self, queue: list[int]) -> _Held | None:
        if not queue:
            return None
        index = queue.pop(0)
        op, *_, num_parts, _, first, num_steps = self._plan.tasks[index].tolist()
        stride = num_parts if self._plan.strided_parts else 1
        whole = range(self._graph.spaces[op].num_steps)
        steps = range(first, first + stride * num_steps, stride) if num_parts else whole
        if not (space := self._graph.spaces[op]).bounds:
            return _Held(index=index, steps=steps)
        tile, bounded = self._tile_of(index)[1], {bound.tensor for bound in space.bounds}
        boxes = [read.box for read in space.reads if not read.is_late and read.box.tensor in bounded]
        kept = [s for s in steps if all(is_left(space, box, tile, s, self._values) for box in boxes)]
        return _Held(index=index, steps=kept if self._is_left(op, tile) else [])

    def _is_left(self, op: int, tile: tuple[int, ...]) -> bool:
        """Whether a tile has anything to write."""
        space = self._graph.spaces[op]
        return all(is_left(space, box, tile, 0, self._values) for box in space.writes)

    def _tile_of(self, index: int) -> tuple[int, tuple[int, ...]]:
        op, row, col = self._plan.tasks[index, :3].tolist()
        return op, self._graph.spaces[op].coordinates(row, col)

    def _is_ready(self, task: _Held) -> bool:
        """Whether all signals for the task's next step and the earlier ones have arrived; after the last step, those
        for late reads. Data read in band signals its own arrival."""
        op, tile = self._tile_of(task.index)
        if task.done < len(task.steps):
            step, reads = task.steps[task.done], self._graph.spaces[op].reads
            boxes = (read.box for read in reads if read.in_band)
            if any(np.isnan(block(self._memory, box, tile, step)).any() for box in boxes):
                return False
        reached = task.done if task.done < len(task.steps) else max(0, len(task.steps) - 1)
        behind = [EPILOGUE_STEP] if task.done == len(task.steps) else []
        waits = self._plan.waits[self._plan.tasks[task.index, 3] : self._plan.tasks[task.index, 4]].tolist()
        return all(
            bool((self._signals[begin:end] - self._epoch * per_launch >= threshold).all())
            for begin, end, threshold, per_launch, step in waits
            if step <= reached or step in behind
        )

    def _store(self, task: _Held) -> bool:
        """Stores a tile whose sums are complete; for a part, stores its sums, and the tile if it is the last part.
        Returns whether the tile is stored."""
        _, _, _, _, _, _, part, num_parts, slot, *_ = self._plan.tasks[task.index].tolist()
        arrived = self._partial.setdefault(slot, {}) if num_parts else {}
        arrived[part] = task.sums
        if len(arrived) < num_parts:
            return False
        op, tile = self._tile_of(task.index)
        if not self._is_left(op, tile):
            return True
        self._arithmetic[op].store(self._memory, tile, [sums for _, sums in sorted(arrived.items())])
        return True
