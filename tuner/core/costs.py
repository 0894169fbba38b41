"""What the tiles of an op, or their parts, cost an SM: panels of operands, time on its units, turns of the ring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.core.engine_wgmma import multiplied_rows, num_groups, tensor_share
from tuner.core.gpu import Gpu
from tuner.core.schedule import Engine, Tile, Tiling, warp_grid
from tuner.core.split import SUM_BYTES, num_steps
from tuner.core.tiles import TileGraph, part_steps, product_tile
from tuner.core.workload import ROW_SCALE_BYTES

#: Source: NVIDIA architecture white papers: 128 bytes of shared memory and 64 bytes of L2 per clock and SM.
SMEM_BYTES_PER_CLOCK = 128
L2_BYTES_PER_CLOCK = 64
#: Share of an SM's rates that the mma engine's main loop attains: fitted to the trials of
#: benchmarks/results/h200/first_trials.json.
SM_EFFICIENCY = 0.65


@dataclass(frozen=True, kw_only=True)
class PartCosts:
    """What one part of the tiles of an op costs, or a whole tile."""

    #: [tile row] (panel, bytes) of the rows of A that it reads.
    a_panels: list[list[tuple[int, int]]]
    #: [tile col] (panel, bytes) of its weights and bias.
    w_panels: list[list[tuple[int, int]]]
    #: Time on the SM's own units.
    busy_us: float
    #: Stages of the main loop over stages in flight, without those that are requested ahead.
    turns: float
    #: Of its weights, what is requested before its inputs are there; 0 where nothing is.
    ahead_bytes: int


@dataclass(frozen=True, kw_only=True)
class OpCosts:
    """What the tiles of one op cost."""

    #: By part; the last one is that of a whole tile.
    parts: list[PartCosts]
    #: [tile row], [tile col]: the panels of the output that the tile writes, with their bytes; None where it leaves.
    out_panels: list[list[list[tuple[int, int]]]] | None
    #: [tile row], [tile col]: clipped extents.
    rows: list[int]
    cols: list[int]
    #: Bytes that pass through DRAM once and are of no use after: the output where it leaves, and the residual, per
    #: element of the tile; the row scale, per row.
    once_bytes: int
    once_row_bytes: int
    #: To write the sums of one part, or to read them, through the SM's port to the L2.
    slot_us: float


class Panels:
    """Numbers for the panels of all tensors."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int, int], int] = {}
        self._count = 0

    def cut(self, tensor: str, extents: list[int], slices: list[int]) -> list[list[tuple[int, int]]]:
        """[panel of rows], [slice of columns]: its number, and its elements."""
        key = (tensor, max(extents), len(slices))
        if key not in self._first:
            self._first[key] = self._count
            self._count += len(extents) * len(slices)
        first = self._first[key]
        return [
            [(first + row * len(slices) + col, extent * width) for col, width in enumerate(slices)]
            for row, extent in enumerate(extents)
        ]


def _extents(size: int, tile: int) -> list[int]:
    return [min(tile, size - begin) for begin in range(0, size, tile)]


def _slices(graph: TileGraph, op_index: int) -> list[int]:
    """Columns of A that each part of an op's tiles reads."""
    op, tile, num_parts = graph.workload.ops[op_index], graph.tiling.tiles[op_index], graph.num_parts(op_index)
    steps = (part_steps(num_steps(op, tile), part, num_parts) for part in range(num_parts))
    return [min(end * tile.k, op.k) - begin * tile.k for begin, end in steps]


def _out_panels(graph: TileGraph, op_index: int, panels: Panels) -> list[list[list[tuple[int, int]]]] | None:
    """The panels in which the consumers will look for what a tile writes, cut as each of them reads."""
    op, tile, size = graph.workload.ops[op_index], graph.tiling.tiles[op_index], graph.workload.dtype.size_bytes
    cuts = {tuple(_slices(graph, reader)) for reader in graph.workload.consumers_of(op_index)}
    if not cuts:
        return None
    rows, num_cols = _extents(op.m, tile.m), -(-op.n // tile.n)
    written: list[list[list[tuple[int, int]]]] = [[[] for _ in range(num_cols)] for _ in rows]
    for slices in sorted(cuts):
        ends = np.cumsum(slices)
        slice_of = np.searchsorted(ends, np.arange(num_cols) * tile.n, side="right").tolist()
        for row, cells in enumerate(panels.cut(op.name, rows, list(slices))):
            for col, part in enumerate(slice_of):
                panel, elements = cells[part]
                written[row][col].append((panel, elements * size))
    return written


def op_costs(graph: TileGraph, op_index: int, gpu: Gpu, panels: Panels) -> OpCosts:
    op, tile = graph.workload.ops[op_index], graph.tiling.tiles[op_index]
    size = graph.workload.dtype.size_bytes
    rows, cols = _extents(op.m, tile.m), _extents(op.n, tile.n)
    slices, num_parts = _slices(graph, op_index), graph.num_parts(op_index)
    edge = graph.edges_into(op_index)
    if edge is None:
        reads = [[row] for row in panels.cut(op.source, rows, slices)]
    else:
        source, height = graph.workload.ops[edge.producer], graph.tile_ms[edge.producer]
        whole = panels.cut(source.name, _extents(source.m, height), slices)
        reads = [whole[a:b] for a, b in zip(edge.first.tolist(), edge.last.tolist(), strict=True)]
    weights = panels.cut(f"{op.name}.weight", [extent * op.rows_per_column for extent in cols], slices)
    parts = []
    for part in range(num_parts) if num_parts > 1 else ():
        begin, end = part_steps(num_steps(op, tile), part, num_parts)
        parts.append(_part_costs(graph, op_index, gpu, slice(part, part + 1), end - begin, reads, weights))
    parts.append(_part_costs(graph, op_index, gpu, slice(0, num_parts), num_steps(op, tile), reads, weights))
    for col, extent in enumerate(cols) if op.bias else ():
        for last in parts[-2:]:  # the last part, and the whole tile
            panel, num_bytes = last.w_panels[col][-1]
            last.w_panels[col][-1] = (panel, num_bytes + extent * op.rows_per_column * size)
    out_panels, product = _out_panels(graph, op_index, panels), product_tile(op, graph.tiling.cta_tiles[op_index])
    return OpCosts(
        parts=parts,
        out_panels=out_panels,
        rows=rows,
        cols=cols,
        once_bytes=((out_panels is None) + op.residual) * size,
        once_row_bytes=op.row_scale * ROW_SCALE_BYTES,
        slot_us=product.m * product.n * SUM_BYTES / L2_BYTES_PER_CLOCK / gpu.clock_mhz / SM_EFFICIENCY,
    )


def _part_costs(
    graph: TileGraph,
    op_index: int,
    gpu: Gpu,
    part: slice,
    depth: int,
    reads: list[list[list[tuple[int, int]]]],
    weights: list[list[tuple[int, int]]],
) -> PartCosts:
    """Costs of `depth` k-steps on the slices `part` of [tile row] rows of panels, and of the weights' panels."""
    op, tile, size = graph.workload.ops[op_index], graph.tiling.tiles[op_index], graph.workload.dtype.size_bytes
    tile = product_tile(op, tile)
    ahead = min(depth, graph.tiling.num_stages) if runs_ahead(graph.tiling) else 0
    return PartCosts(
        a_panels=[[(panel, n * size) for cells in row for panel, n in cells[part]] for row in reads],
        w_panels=[[(panel, n * size) for panel, n in cells[part]] for cells in weights],
        busy_us=depth * _step_us(graph, op_index, gpu),
        turns=(depth - ahead) / _steps_in_flight(graph.tiling),
        ahead_bytes=ahead * tile.n * tile.k * size,
    )


def tensor_rows(tiling: Tiling, tile: Tile) -> int:
    """Rows that the tensor cores multiply for a tile: wgmma's are whole blocks."""
    return multiplied_rows(tile, num_groups(tiling)) if tiling.engine is Engine.WGMMA else tile.m


def runs_ahead(tiling: Tiling) -> bool:
    """Whether a CTA requests the operands of its next task while it computes one, and weights before any wait."""
    return tiling.engine is Engine.WGMMA


def _steps_in_flight(tiling: Tiling) -> int:
    """Stages that may be under way: one of mma's is being multiplied, and wgmma's window is a limit of its own."""
    return tiling.num_stages - 1 if tiling.engine is Engine.MMA else tiling.window or tiling.num_stages


def _step_us(graph: TileGraph, op_index: int, gpu: Gpu) -> float:
    """Time of one k-step on the SM's own units: the slowest of them, at the share of its rate that is attained."""
    tiling, op = graph.tiling, graph.workload.ops[op_index]
    tile, size = product_tile(op, tiling.cta_tiles[op_index]), graph.workload.dtype.size_bytes
    us_per_flop, bytes_of_a_row = 1e6 * gpu.num_sms / gpu.tensor_flops_per_s, tile.k * size
    port_us = (tile.m + tile.n) * bytes_of_a_row / L2_BYTES_PER_CLOCK / gpu.clock_mhz
    if tiling.engine is Engine.WGMMA:
        return max(port_us, us_per_flop * 2 * tensor_rows(tiling, tile) * tile.n * tile.k / tensor_share(tile.n))
    warps_m, warps_n = warp_grid(tiling.tiles[op_index], tiling.num_warps, op.rows_per_column) or (1, 1)
    # Each warp reads its own fragments: warp_m + warp_n rows, over all warps of the CTA.
    smem_us = (tile.m * warps_n + tile.n * warps_m) * bytes_of_a_row / SMEM_BYTES_PER_CLOCK / gpu.clock_mhz
    return max(port_us, smem_us, us_per_flop * 2 * tile.m * tile.n * tile.k) / SM_EFFICIENCY
