"""A launch for the simulator, of ops without a kind, given by their boxes: each written tile is a panel."""

from __future__ import annotations

import math
from functools import partial

from tests.support.box_graphs import BoxGraph
from tuner.core.model.caches.l2 import NORMAL
from tuner.core.model.launch import Launch
from tuner.core.model.rates import rates_of
from tuner.core.model.task_costs import OpCosts, PartCosts
from tuner.core.plan.graph.boxes import Box, TileSpace
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.tiling import Engine

#: Microseconds per element, and per step of a tile.
ELEMENT_BYTES, STEP_US = 4, 0.5


def launch_of(graph: BoxGraph, gpu: Gpu) -> Launch:
    """A launch with two CTAs per SM that run one task at a time."""
    panels: dict[tuple[str, int], int] = {}
    return Launch(
        costs={op: _costs(graph, op, panels, rates_of(gpu).post_us) for op in graph.op_indices},
        weight_class=NORMAL,
        input_classes=dict.fromkeys(graph.op_indices, NORMAL),
        output_classes=dict.fromkeys(graph.op_indices, NORMAL),
        written_before=(),
        cluster_size=1,
        occupancy=2,
        num_stages=2,
        num_teams=1,
        runs_ahead=False,
        num_pollers=32,
        engine=rates_of(gpu).of(Engine.SIMT),
    )


def num_bytes(box: Box, tile: tuple[int, ...], step: int = 0) -> int:
    """The bytes of a tile's box."""
    return ELEMENT_BYTES * math.prod(max(0, side.stop - side.start) for side in box.at(tile, step))


def _costs(graph: BoxGraph, op: int, panels: dict[tuple[str, int], int], post_us: float) -> OpCosts:
    """The costs of one op in which the tile row alone determines the panels that a tile reads: those of all tiles of
    the row."""
    space, (rows, cols) = graph.spaces[op], graph.grids[op]
    reads = [_read_by_row(graph, op, row, panels) for row in range(rows)]
    return OpCosts(
        of=partial(_part, space, reads),
        whole=_part(space, reads, 0, 1, space.num_steps),
        out_panels=[[_written(space, row, col, panels) for col in range(cols)] for row in range(rows)],
        leaves=not any(edge.producer == op != edge.consumer for edge in graph.edges),
        rows=[sum(num_bytes(box, space.coordinates(row, 0)) for box in space.writes) for row in range(rows)],
        cols=[1] * cols,
        once_bytes=0,
        once_row_bytes=0,
        element_bytes=1,
        store_us=STEP_US,
        post_us=post_us,
        part_post_us=post_us,
        exposed_share=0.0,
        slot_us=STEP_US,
        slot_bytes=64,
    )


def _panel(panels: dict[tuple[str, int], int], tensor: str, tile: int) -> int:
    return panels.setdefault((tensor, tile), len(panels))


def _written(space: TileSpace, row: int, col: int, panels: dict[tuple[str, int], int]) -> list[tuple[int, int, int]]:
    size = sum(num_bytes(box, space.coordinates(row, col)) for box in space.writes)
    return [(_panel(panels, space.name, row * space.word_grid[1] + col), size, size)]


def _read_by_row(graph: BoxGraph, op: int, row: int, panels: dict[tuple[str, int], int]) -> list[tuple[int, int]]:
    """(panel, bytes) of what the tiles of a row read: tile by tile if this launch writes it; an input is one panel."""
    found: dict[int, int] = {}
    num_cols = graph.grids[op][1]
    for edge in (edge for edge in graph.edges if edge.consumer == op):
        needs = edge.needs_of_tiles()
        for tile in range(row * num_cols, (row + 1) * num_cols):
            for other in needs.tiles[needs.entries(needs.of[tile])].tolist():
                at = edge.writer.coordinates(*divmod(other, edge.writer.word_grid[1]))
                size = sum(num_bytes(box, at) for box in edge.writer.writes)
                found[_panel(panels, edge.writer.name, other)] = size
    space, inside = graph.spaces[op], {edge.read for edge in graph.edges}
    for read in (read for read in space.reads if read not in inside):
        size = sum(num_bytes(read.box, space.coordinates(row, 0), step) for step in range(space.num_steps))
        found[_panel(panels, read.box.tensor, row)] = size
    return sorted(found.items())


def _part(space: TileSpace, reads: list[list[tuple[int, int]]], first: int, stride: int, count: int) -> PartCosts:
    mine = [[(panel, max(1, size * count // space.num_steps)) for panel, size in row] for row in reads]
    return PartCosts(
        a_panels=mine,
        a_bytes=[sum(size for _, size in row) for row in mine],
        w_panels=[[] for _ in range(space.word_grid[1])],
        w_bytes=[0] * space.word_grid[1],
        busy_us=count * STEP_US,
        step_us=STEP_US,
        turns=count / 2,
        turn_us=0.1,
        inputs_us=0.0,
        ahead_bytes=0,
        stage_bytes=1,
        dram_stretch=1.0,
        link_stretch=1.0,
    )
