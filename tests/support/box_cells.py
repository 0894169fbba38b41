"""Reads between tiles, found cell by cell: a reference for the edges of a tile graph that uses none of its code."""

from __future__ import annotations

from itertools import product

import numpy as np

from tuner.core.plan.graph.boxes import Box
from tuner.core.plan.graph.tile_graph import TaskGraph, part_steps
from tuner.core.plan.table.words import EPILOGUE_STEP

#: Axes of the op, then its row and its column, as in the words of a plan.
Tile = tuple[int, int, int]
Cell = tuple[int, ...]


def cells(box: Box, tile: tuple[int, ...], step: int = 0) -> set[tuple[str, *Cell]]:
    """The elements of a tile's box."""
    sides = (range(side.start, side.stop) for side in box.at(tile, step))
    return {(box.tensor, *cell) for cell in product(*sides)}


def tiles_of(graph: TaskGraph, op: int) -> list[Tile]:
    """All tiles of an op."""
    rows, cols = graph.grids[op]
    return [(op, row, col) for row, col in product(range(rows), range(cols))]


def writers(graph: TaskGraph) -> dict[tuple[str, *Cell], Tile]:
    """The tile that writes each element of the tensors that the launch writes; raises if two tiles write one."""
    found: dict[tuple[str, *Cell], Tile] = {}
    for tile in (tile for op in graph.op_indices for tile in tiles_of(graph, op)):
        space = graph.spaces[tile[0]]
        for box in space.writes:
            for cell in cells(box, space.coordinates(*tile[1:])):
                assert found.setdefault(cell, tile) == tile, f"{cell} is written by {found[cell]} and {tile}"
    return found


def tiles_read(
    graph: TaskGraph, tile: Tile, part: int = 0, num_parts: int = 1, *, is_late: bool = False
) -> dict[Tile, int]:
    """The tiles that a task reads, each with the first step in which the task reads it: one of its own steps, or
    late."""
    space, wrote = graph.spaces[tile[0]], _kept_writers(graph)
    steps = part_steps(space.num_steps, part, max(1, num_parts), strided=graph.strided_parts)
    first: dict[Tile, int] = {}
    for read in space.reads:
        if read.is_late is not is_late:
            continue
        for number, step in enumerate([0] if is_late else steps):
            for cell in cells(read.box, space.coordinates(*tile[1:]), step):
                if cell in wrote:
                    when = EPILOGUE_STEP if is_late else number
                    first[wrote[cell]] = min(when, first.get(wrote[cell], when))
    return first


_writers: dict[int, tuple[TaskGraph, dict[tuple[str, *Cell], Tile]]] = {}


def _kept_writers(graph: TaskGraph) -> dict[tuple[str, *Cell], Tile]:
    """`writers`, cached for the last graph."""
    if id(graph) not in _writers:
        _writers.clear()
        _writers[id(graph)] = graph, writers(graph)
    return _writers[id(graph)][1]


def tiles_named(
    graph: TaskGraph, tile: Tile, part: int = 0, num_parts: int = 0, *, is_late: bool = False
) -> dict[Tile, int]:
    """Same as `tiles_read`, from the graph's edges. If a tile occurs twice, the earlier step is used."""
    steps = part_steps(graph.spaces[tile[0]].num_steps, part, max(1, num_parts), strided=graph.strided_parts)
    words = [[*tile, 0, 0, -1, part, num_parts, 0, steps.start, len(steps)]]
    task, named = np.array(words, dtype=np.int32), dict[Tile, int]()
    for edge in (edge for edge in graph.edges if edge.consumer == tile[0] and edge.is_late is is_late):
        needs = edge.needs(edge.reader.places(task), graph.steps_of(task))
        assert needs.of.tolist() == [0]
        for number, step in zip(needs.tiles.tolist(), needs.steps.tolist(), strict=True):
            other = (edge.producer, *divmod(number, edge.writer.word_grid[1]))
            named[other] = min(step, named.get(other, step))
    return named
