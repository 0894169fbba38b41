"""Toy ops without a kind: products over tensors [h, w, c], a blur with a halo, and a scan that reads itself.

The blur's tiles have three coordinates. It reads a halo of one in h and in w, channel by channel in its steps, and may
add its own box of the same tensor after them. The scan goes down h: each of its tiles reads the last row of the
previous tile, which the scan wrote itself.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.box_graphs import BoxGraph, box_graph
from tests.support.task_machine import Arithmetic, Memory, Tensor, block
from tuner.core.plan.build import plan_of
from tuner.core.plan.graph.boxes import STEP, Box, BoxRead, Extent, TileSpace, along, whole
from tuner.core.plan.graph.tile_graph import TaskGraph
from tuner.core.plan.order.split_tasks import parted
from tuner.core.plan.table.words import Plan
from tuner.core.proof.liveness import check_epochs, check_liveness
from tuner.core.proof.run_time import check_run_time
from tuner.core.proof.safety import check_safety
from tuner.core.proof.verify import check_coverage
from tuner.core.schedule.ordering import Granularity, WaitPosition


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Tensors [h, w, channels], and tiles of them."""

    h: int = 4
    w: int = 4
    channels: int = 4
    #: Tile height of all ops.
    tile_h: int = 2
    #: Tile width of the blur.
    tile_w: int = 2
    #: Channels per tile and per step of all ops, at most.
    tile_c: int = 4
    step_c: int = 2
    blur_parts: int = 1
    adds: bool = False


def _by_channels(shape: Shape) -> Extent:
    return along(STEP, shape.channels, shape.step_c)


def _num_steps(shape: Shape) -> int:
    return -(-shape.channels // shape.step_c)


def product(name: str, source: str, shape: Shape) -> TileSpace:
    """[h, w, c] from whole rows of [h, w, c]; two coordinates."""
    rows, columns = along(0, shape.h, shape.tile_h), along(1, shape.channels, shape.tile_c)
    inputs = BoxRead(box=Box(tensor=source, extents=(rows, whole(shape.w), _by_channels(shape))))
    weights = BoxRead(box=Box(tensor=f"{name}.weight", extents=(columns, _by_channels(shape))))
    return TileSpace(
        name=name,
        grid=(len(rows.begin), len(columns.begin)),
        num_steps=_num_steps(shape),
        writes=(Box(tensor=name, extents=(rows, whole(shape.w), columns)),),
        reads=(inputs, weights),
    )


def blur(name: str, source: str, shape: Shape, *, halo: int = 1) -> TileSpace:
    """Sums of neighbours, mixed along channels; three coordinates."""
    sides = [(shape.h, shape.tile_h), (shape.w, shape.tile_w)]
    near = [along(axis, size, tile, before=halo, after=halo) for axis, (size, tile) in enumerate(sides)]
    own = [along(axis, size, tile) for axis, (size, tile) in enumerate(sides)]
    columns = along(2, shape.channels, shape.tile_c)
    reads = [BoxRead(box=Box(tensor=source, extents=(*near, _by_channels(shape))))]
    if shape.adds:
        reads.append(BoxRead(box=Box(tensor=source, extents=(*own, columns)), is_late=True))
    reads.append(BoxRead(box=Box(tensor=f"{name}.weight", extents=(columns, _by_channels(shape)))))
    return TileSpace(
        name=name,
        grid=tuple(len(extent.begin) for extent in (*own, columns)),
        num_steps=_num_steps(shape),
        num_parts=shape.blur_parts,
        writes=(Box(tensor=name, extents=(*own, columns)),),
        reads=tuple(reads),
        row_axes=2,
    )


def scan(name: str, source: str, shape: Shape) -> TileSpace:
    """Each row is half of the previous row plus a row of the source."""
    rows, columns = along(0, shape.h, shape.tile_h), along(1, shape.channels, shape.tile_c)
    before = Extent(axes=(0,), begin=np.maximum(rows.begin - 1, 0), end=rows.begin.copy())
    return TileSpace(
        name=name,
        grid=(len(rows.begin), len(columns.begin)),
        num_steps=1,
        writes=(Box(tensor=name, extents=(rows, whole(shape.w), columns)),),
        reads=(
            BoxRead(box=Box(tensor=source, extents=(rows, whole(shape.w), columns))),
            BoxRead(box=Box(tensor=name, extents=(before, whole(shape.w), columns))),
        ),
    )


def blurred(shape: Shape) -> BoxGraph:
    """A blur between two products."""
    return box_graph(product("a", "x", shape), blur("b", "a", shape), product("c", "b", shape))


def scanned(shape: Shape) -> BoxGraph:
    """A scan between two products."""
    return box_graph(product("a", "x", shape), scan("s", "a", shape), product("c", "s", shape))


def chained(shape: Shape) -> BoxGraph:
    """All of them, and two consecutive blurs."""
    return box_graph(
        product("a", "x", shape),
        blur("b", "a", shape),
        blur("d", "b", shape),
        scan("s", "d", shape),
        product("c", "s", shape),
    )


class Tiles(Arithmetic):
    """The arithmetic of these ops on the contents of their boxes."""

    def __init__(self, space: TileSpace, shape: Shape) -> None:
        self.space, self._shape = space, (shape.h, shape.w, shape.channels)

    def outputs(self) -> Memory:
        return {self.space.name: np.full(self._shape, np.nan)}

    def add(self, memory: Mapping[str, Tensor], tile: tuple[int, ...], step: int, sums: Any) -> Any:
        inputs, other = self.space.reads[0].box, self.space.reads[-1].box
        read = block(memory, inputs, tile, step)
        if other.tensor == self.space.name:  # a scan
            before = block(memory, other, tile, step)
            rows = [before[0]] if len(before) else [np.zeros(read.shape[1:])]
            for row in read:
                rows.append(rows[-1] / 2 + row)
            return np.stack(rows[1:])
        own = self.space.writes[0].at(tile)
        if len(self.space.grid) == 3:
            offsets = [inside.start - around.start for inside, around in zip(own, inputs.at(tile, step), strict=True)]
            sizes = [side.stop - side.start for side in own]
            read = neighbours(read)[offsets[0] : offsets[0] + sizes[0], offsets[1] : offsets[1] + sizes[1]]
        made = read @ block(memory, other, tile, step).T
        return made if sums is None else sums + made

    def store(self, memory: Memory, tile: tuple[int, ...], parts: list[Any]) -> None:
        late = [block(memory, read.box, tile) for read in self.space.reads if read.is_late]
        block(memory, self.space.writes[0], tile)[...] = sum(parts[1:], start=parts[0]) + sum(late)


def neighbours(tensor: Tensor) -> Tensor:
    """The sum of each element and its neighbours in h and w, [h, w, c]."""
    padded = np.pad(tensor, ((1, 1), (1, 1), (0, 0)))
    h, w = tensor.shape[:2]
    return np.asarray(sum(padded[i : i + h, j : j + w] for i in range(3) for j in range(3)))


def inputs(graph: BoxGraph, shape: Shape, seed: int) -> Memory:
    """The inputs of the graph."""
    rng = np.random.default_rng(seed)
    square = (shape.channels, shape.channels)
    weights = {f"{space.name}.weight": rng.standard_normal(square) for space in graph.ops}
    return {"x": rng.standard_normal((shape.h, shape.w, shape.channels)), **weights}


def whole_answers(graph: BoxGraph, shape: Shape, tensors: Mapping[str, Tensor]) -> Memory:
    """Every op's output, computed whole and in order."""
    known = dict(tensors)
    for space in graph.ops:
        source, weight = known[space.reads[0].box.tensor], known[f"{space.name}.weight"]
        if space.reads[-1].box.tensor == space.name:
            rows = [np.zeros(source.shape[1:])]
            for row in source:
                rows.append(rows[-1] / 2 + row)
            known[space.name] = np.stack(rows[1:])
            continue
        is_blur = len(space.grid) == 3
        made = (neighbours(source) if is_blur else source) @ weight.T
        known[space.name] = made + source if is_blur and shape.adds else made
    return {space.name: known[space.name] for space in graph.ops}


def random_plan(
    graph: BoxGraph,
    rng: random.Random,
    *,
    num_ctas: int,
    granularity: Granularity | None = None,
    position: WaitPosition | None = None,
) -> Plan:
    """Ops and tiles in order, in queues or by tickets. Tiles of ops that do not read themselves are shuffled."""
    columns = []
    for op, space in graph.spaces.items():
        tiles = list(range(space.num_tiles))
        if not any(edge.producer == edge.consumer == op for edge in graph.edges):
            rng.shuffle(tiles)
        columns.append(np.array([(op, *divmod(tile, space.word_grid[1])) for tile in tiles], dtype=np.int64))
    ops, rows, cols = np.concatenate(columns).T
    graph = graph.with_parts(strided=rng.random() < 0.5)
    tasks = parted(graph, (ops, rows, cols))
    chosen = granularity or rng.choice((Granularity.TILE, Granularity.ROW, Granularity.CHUNK, Granularity.STRIDED))
    width = 2 if chosen in (Granularity.CHUNK, Granularity.STRIDED, Granularity.BATCH) else 1
    queue = np.arange(len(tasks)) % num_ctas if rng.random() < 0.5 else None
    where = position or rng.choice(tuple(WaitPosition))
    return plan_of(graph, tasks, chosen, width, num_ctas, queue, wait_position=where)


def prove(plan: Plan, graph: TaskGraph) -> Plan:
    """The plan, read from its words and proven, without the requirements on kernel and GPU.

    Raises:
        PlanError: same as for `verify`.
    """
    judged = Plan.from_words(plan.words)
    graph = graph.with_parts(strided=judged.strided_parts).with_in_band(judged.in_band_ops)
    for check in (check_coverage, check_run_time, check_epochs, check_liveness, check_safety):
        check(judged, graph)
    return judged
