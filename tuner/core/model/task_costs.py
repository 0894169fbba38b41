"""SM costs of an op's tiles or their parts: panels of operands, time on the SM's units, turns of the ring."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tuner.core.legal.mma import warp_grid
from tuner.core.legal.warpgroups.parts import columns_at_once
from tuner.core.legal.wgmma import multiplied, num_groups
from tuner.core.model.rates import EngineRates, Rates
from tuner.core.model.thread_costs import converting_us, finishing_us, promoting_us
from tuner.core.plan.graph.boxes import Ints
from tuner.core.plan.graph.products import product_tile
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.split_k import SUM_BYTES
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tile, Tiling, Warpgroups
from tuner.errors import IllegalSchedule

#: Source: NVIDIA architecture white papers; 128 bytes of shared memory and 64 bytes of L2 per clock and SM.
SMEM_BYTES_PER_CLOCK = 128
L2_BYTES_PER_CLOCK = 64
#: From one SM of a cluster to another: the latency, the bytes per clock of each SM while all send, and how long each
#: exchange after the second waits for an earlier one to be added. Source: docs/findings/README.md, `cluster-sums`.
HOP_CLOCKS, HOP_BYTES_PER_US, ADDED_CLOCKS = 690, 61_000, 1_000
#: fp32 products of an SM per clock (same source), and the share of them that dot products achieve: an estimate.
FP32_LANES, FP32_SHARE = 128, 0.65
#: Share of the tensor cores' rate that wgmma's main loop achieves, by rows of operand B of a task. An instruction reads
#: 64 rows of A and these rows of B from shared memory, so more rows of B give more products per byte.
_TENSOR_SHARES = ((16, 0.3), (32, 0.5), (64, 0.65), (128, 0.8), (176, 0.9))
#: How much longer than others, for the same bytes, an op that gathers its inputs occupies the link, how much longer
#: each of its k-steps takes in wgmma, and the maximum of its `post_us`, whose rate was fitted to products that fill the
#: DRAM. Fitted to 292 schedules of seven pairs of convolutions on an H200 (conv_forecasts.json and conv_sweep.json).
GATHERING_LINK_STRETCH, GATHERING_STEP_US, GATHERING_POST_US = 1.95, 0.05, 0.3
#: Weights of so few bits are multiplied about as fast as they are loaded, and neither overlaps the other completely:
#: kernels take 0.26 to 0.7 of the shorter one longer than the longer one (few_bits_left_out.json). The share of
#: `post_us`, fitted to whole tiles of 16 bits, that their tile's last part takes: 1 to 2 us with its store (same file).
FEW_BITS, PART_POST_SHARE = 8, 0.5
#: Maximum number of kinds of tasks per op whose costs are cached: a tail that is cut by k-steps has one per CTA.
MAX_KINDS = 1024
#: Slices per even part's inputs if parts are uneven: an uneven part reads the slices that begin in its k-steps.
SLICES_PER_PART = 2


@dataclass(frozen=True, kw_only=True)
class PartCosts:
    """Costs of some k-steps of an op's tiles: those of a part, or all."""

    #: [tile row] (panel, bytes) of the rows of A that it reads, and the bytes that it requests: more if it gathers.
    a_panels: list[list[tuple[int, int]]]
    a_bytes: list[int]
    #: [tile col] (panel, bytes) of its weights and bias, and total bytes.
    w_panels: list[list[tuple[int, int]]]
    w_bytes: list[int]
    #: Time on the SM's own units, and that of one k-step.
    busy_us: float
    step_us: float
    #: Stages of the main loop divided by stages in flight, without those requested ahead; and the time of a stage
    #: beyond its latency, without other requests.
    turns: float
    turn_us: float
    #: Minimum time of its inputs through a separate ring, from the L2; 0 if a stage has both operands.
    inputs_us: float
    #: Bytes of its weights that can be requested before its inputs arrive, and the weights of one stage.
    ahead_bytes: int
    stage_bytes: int
    #: Factors by which its reads occupy the DRAM, and the link, longer than their bytes.
    dram_stretch: float
    link_stretch: float


@dataclass(frozen=True, kw_only=True)
class OpCosts:
    """Costs of the tiles of one op."""

    #: Costs of k-steps of a tile, by the first step, the stride and the number; and of a whole tile.
    of: Callable[[int, int, int], PartCosts]
    whole: PartCosts
    #: [tile row], [tile col]: the panels of the output that the tile writes, their bytes, and the tile's share of them.
    out_panels: list[list[list[tuple[int, int, int]]]]
    #: Whether the output is an output of the chain, which no op reads.
    leaves: bool
    #: [tile row], [tile col]: clipped extents.
    rows: list[int]
    cols: list[int]
    #: Bytes that are read once for the epilogue: the residual, per element of the tile, and the row scale, per row.
    once_bytes: int
    once_row_bytes: int
    #: Bytes of the output per column of the tile: one element, or a pair.
    element_bytes: int
    #: Rounding and store of a tile, the sum over CTAs that split its K, and all costs of a task besides its loops.
    store_us: float
    #: Time until others see that it is stored; the same for a tile that its last part stores.
    post_us: float
    part_post_us: float
    #: Part of the shorter of multiplying and loading from DRAM that does not overlap: 0 for own weights of 16 bits.
    exposed_share: float
    #: Time to write the sums of one part, or to read them, and their bytes.
    slot_us: float
    slot_bytes: int


class Panels:
    """Numbers for the panels of all tensors."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int, int], int] = {}
        self._count = 0

    def sliced(self, tensor: str, extents: list[int], slices: list[int]) -> list[list[tuple[int, int]]]:
        """[panel of rows], [slice of columns]: the number of the panel's slice, and its elements."""
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


def _slices(graph: TileGraph, op_index: int, finer: int) -> list[range]:
    """The k-steps of each slice of A and of the weights; a slice is in the L2 or not as a whole. A slice is an even
    part's inputs, or one of `finer` slices of them if parts are uneven."""
    num_parts, num_steps = graph.num_parts(op_index), len(graph.steps(op_index))
    num_slices = min(num_parts * finer, num_steps) if num_parts > 1 else 1
    return [graph.steps(op_index, number, num_slices) for number in range(num_slices)]


def _slice_of_columns(graph: TileGraph, op_index: int, finer: int) -> Ints:
    """[columns of A] the slice of each column."""
    op = graph.workload.tile_ops[op_index]
    if not op.is_plain_product:  # each of its parts reads all channels
        return np.zeros(op.source_columns, dtype=np.int64)
    slice_of = np.empty(len(graph.steps(op_index)), dtype=np.int64)
    for number, steps in enumerate(_slices(graph, op_index, finer)):
        slice_of[steps] = number
    return np.repeat(slice_of, graph.tiling.tiles[op_index].k)[: op.k]


def _widths(graph: TileGraph, op_index: int, finer: int) -> list[int]:
    """Columns of each slice."""
    widths: list[int] = np.bincount(_slice_of_columns(graph, op_index, finer)).tolist()
    return widths


def _out_panels(graph: TileGraph, op_index: int, panels: Panels, finer: int) -> list[list[list[tuple[int, int, int]]]]:
    """The panels in which consumers read a tile's output, divided as each of them reads it; the tile itself if there
    are none."""
    op, tile = graph.workload.tile_ops[op_index], graph.tiling.tiles[op_index]
    size = op.stored_in(graph.workload.dtype).size_bytes
    readers = {tuple(_widths(graph, reader, finer)): reader for reader in graph.workload.consumers_of(op_index)}
    if not readers:
        tiles = panels.sliced(op.name, op.row_extents(tile.m), _extents(op.n, tile.n))
        return [[[(panel, elements * size, elements * size)] for panel, elements in row] for row in tiles]
    rows, num_cols = op.row_extents(tile.m), -(-op.n // tile.n)
    written: list[list[list[tuple[int, int, int]]]] = [[[] for _ in range(num_cols)] for _ in rows]
    for slices, reader in sorted(readers.items()):
        cell_of = np.arange(op.n) // tile.n * len(slices) + _slice_of_columns(graph, reader, finer)
        shares = np.bincount(cell_of, minlength=num_cols * len(slices)).reshape(num_cols, -1).tolist()
        for row, cells in enumerate(panels.sliced(op.name, rows, list(slices))):
            for col, widths in enumerate(shares):
                written[row][col] += [
                    (panel, elements * size, rows[row] * width * size)
                    for (panel, elements), width in zip(cells, widths, strict=True)
                    if width
                ]
    return written


def costs_of(graph: TileGraph, gpu: Gpu, rates: Rates, *, has_even_parts: bool = True) -> dict[int, OpCosts]:
    """The costs of each op of a launch."""
    finer = 1 if has_even_parts else SLICES_PER_PART
    return _costs_of(graph.workload, graph.tiling, graph.op_indices, graph.strided_parts, gpu, rates, finer)


@lru_cache(maxsize=64)
def _costs_of(
    workload: Workload,
    tiling: Tiling,
    op_indices: tuple[int, ...],
    strided_parts: bool,
    gpu: Gpu,
    rates: Rates,
    finer: int,
) -> dict[int, OpCosts]:
    """Same as `costs_of`; cached, since thousands of orders share the costs."""
    graph, panels = tile_graph(workload, tiling, op_indices).with_parts(strided=strided_parts), Panels()
    return {op: op_costs(graph, op, gpu, rates, panels, finer) for op in graph.op_indices}


def op_costs(graph: TileGraph, op_index: int, gpu: Gpu, rates: Rates, panels: Panels, finer: int = 1) -> OpCosts:
    """The costs of one op; `panels` numbers those of all ops of a launch, with `finer` slices per even part."""
    op, tile = graph.workload.tile_ops[op_index], graph.tiling.tiles[op_index]
    size = graph.workload.dtype.size_bytes
    rows, cols = op.row_extents(tile.m), _extents(op.n, tile.n)
    traffic = [part.traffic(op, graph.workload.dtype) for part in op.parts]
    column_bytes = sum(one.column for one in traffic)
    slices, widths = _slices(graph, op_index, finer), _widths(graph, op_index, finer)
    edge = next((edge for edge in graph.streams if edge.consumer == op_index), None)
    if edge is None:
        heights = [extent * op.source_shape[0] // op.m for extent in rows] if op.GATHERS else rows
        reads = [[row] for row in panels.sliced(op.source, heights, widths)]
    else:
        source, height = graph.workload.tile_ops[edge.producer], graph.tiling.tiles[edge.producer].m
        whole = panels.sliced(source.name, source.row_extents(height), widths)
        reads = [whole[a:b] for a, b in zip(*(bound.tolist() for bound in edge.rows), strict=True)]
    depths = widths
    if not op.is_plain_product:
        depths = [_depth(op, tile, steps) for steps in slices] if op.GATHERS else [op.k]
    weights = panels.sliced(f"{op.name}.weight", [extent * op.rows_per_column for extent in cols], depths)

    @lru_cache(maxsize=MAX_KINDS)
    def of(first: int, stride: int, count: int) -> PartCosts:
        steps = range(first, first + count * stride, stride)
        # A slice belongs to one part; if parts are not even, to the part in which it begins.
        mine = [number for number, own in enumerate(slices) if own.start in steps]
        cost = _part_costs(graph, op_index, gpu, rates, mine, count, reads, weights)
        for col, extent in enumerate(cols) if column_bytes and slices[-1].start in steps else ():
            panel, num_bytes = cost.w_panels[col][-1]
            cost.w_panels[col][-1] = (panel, num_bytes + extent * column_bytes)
            cost.w_bytes[col] += extent * column_bytes
        return cost

    engine, own = rates.of(graph.tiling.engine), graph.tiling.cta_tiles[op_index]
    has_few_bits = op.is_plain_product and op.weight_bits(graph.workload.dtype) <= FEW_BITS
    post_us = min(rates.post_us, GATHERING_POST_US) if op.GATHERS else rates.post_us
    slot_bytes = min(own.m, op.m) * product_tile(op, own).n * SUM_BYTES
    return OpCosts(
        of=of,
        whole=of(0, 1, len(graph.steps(op_index))),
        out_panels=_out_panels(graph, op_index, panels, finer),
        leaves=not graph.workload.consumers_of(op_index),
        rows=rows,
        cols=cols,
        once_bytes=sum(one.element for one in traffic),
        once_row_bytes=sum(one.row for one in traffic),
        element_bytes=size * op.result_columns // op.n,
        store_us=engine.task_us
        + engine.store_us_per_kib * min(own.m, op.m) * own.n * size / 1024 / graph.tiling.cluster_k
        + exchange_us(graph.tiling.cluster_k, slot_bytes, gpu, graph.tiling.sum_kib)
        + finishing_us(graph, op_index, gpu)
        + rates.l2_latency_us * sum(part.latency_reads(op) for part in op.parts),
        post_us=post_us,
        part_post_us=post_us * (PART_POST_SHARE if has_few_bits else 1.0),
        exposed_share=engine.exposed_share if len(rows) > 1 or has_few_bits else 0.0,
        slot_us=engine.sum_us_per_kib * slot_bytes / 1024,
        slot_bytes=slot_bytes * graph.tiling.cluster_size,
    )


def _depth(op: TileOp, tile: Tile, steps: range) -> int:
    """Columns of W that `steps` read."""
    return sum(min(tile.k, op.k - step * tile.k) for step in steps)


def _part_costs(
    graph: TileGraph,
    op_index: int,
    gpu: Gpu,
    rates: Rates,
    mine: list[int],
    depth: int,
    reads: list[list[list[tuple[int, int]]]],
    weights: list[list[tuple[int, int]]],
) -> PartCosts:
    """Costs of `depth` k-steps on the slices `mine` of [tile row] rows of panels, and of the weights' panels."""
    op, tile, size = graph.workload.tile_ops[op_index], graph.tiling.tiles[op_index], graph.workload.dtype.size_bytes
    tile = product_tile(op, tile)
    sharers = graph.tiling.cluster_k
    own_depth = -(-depth // sharers)  # of the CTA with the most
    ahead = min(own_depth, graph.tiling.stages_ahead)
    of_inputs = [0] if op.GATHERS else mine
    a_panels = [[(cells[i][0], cells[i][1] * size) for cells in row for i in of_inputs] for row in reads]
    bits = op.weight_bits(graph.workload.dtype)
    w_panels = [[(cells[i][0], cells[i][1] * bits // 8) for i in mine] for cells in weights]
    step_us = k_step_us(graph, op_index, gpu, rates)
    own, tiling = product_tile(op, graph.tiling.cta_tiles[op_index]), graph.tiling
    turn_us = _port_us(own, size, bits, gpu, rates.of(tiling.engine))
    gathered = [rows * depth * tile.k * size for rows in op.row_extents(tile.m)] if op.GATHERS else None
    return PartCosts(
        a_panels=a_panels,
        a_bytes=gathered or [sum(num_bytes for _, num_bytes in row) for row in a_panels],
        w_panels=w_panels,
        w_bytes=[sum(num_bytes for _, num_bytes in row) for row in w_panels],
        busy_us=own_depth * step_us,
        step_us=step_us,
        turns=max(0, own_depth - ahead) / _stages_under_way(tiling),
        turn_us=turn_us,
        inputs_us=_input_turns(tiling, own_depth) * (rates.l2_latency_us + turn_us),
        ahead_bytes=min(depth, ahead * sharers) * tile.n * tile.k * bits // 8,
        stage_bytes=sharers * tile.n * tile.k * bits // 8,
        dram_stretch=rates.dram_stretch(tile.k * bits),
        link_stretch=GATHERING_LINK_STRETCH if op.GATHERS else 1.0,
    )


def exchange_us(sharers: int, tile_bytes: int, gpu: Gpu, room_kib: int) -> float:
    """Time that the CTAs that split a tile's K take to add up its sums, `tile_bytes` per CTA: each CTA sends what the
    others add up, half of the space at a time."""
    if sharers == 1:
        return 0.0
    sent_bytes = tile_bytes * (sharers - 1) / sharers
    num_waiting = max(0, math.ceil(2 * sent_bytes / (1024 * room_kib)) - 2)
    return (HOP_CLOCKS + num_waiting * ADDED_CLOCKS) / gpu.clock_mhz + sent_bytes / HOP_BYTES_PER_US


def multiplied_by(tiling: Tiling, op: TileOp, tile: Tile) -> tuple[int, int]:
    """Rows of operand A and of operand B that the tensor cores multiply for a tile: wgmma's A in whole blocks."""
    if tiling.engine is Engine.WGMMA:
        return multiplied(op, tile, num_groups(tiling), swap_ab=tiling.swap_ab)
    return tile.m, product_tile(op, tile).n


def task_us(workload: Workload, op: TileOp, tile: Tile, chosen: Any, gpu: Gpu) -> float:
    """For an op whose kind defines the task: the time of a task on an SM, from the kind's module ``costs``.

    Raises:
        IllegalSchedule: the kind has no costs.
    """
    if (costs := part_of(op.KIND, "costs")) is None:
        raise IllegalSchedule(f"{op.KIND}: this program does not know the cost of its tasks")
    return float(costs.task_us(op, tile, chosen, workload.dtype, gpu))


def runs_ahead(tiling: Tiling) -> bool:
    """Whether a CTA requests the operands of its next task while it computes one, and weights before any wait."""
    return tiling.engine is Engine.WGMMA


def num_teams(tiling: Tiling) -> int:
    """Teams of warps that alternate between a CTA's tasks."""
    return 2 if tiling.warpgroups is Warpgroups.PING_PONG else 1


def _stages_under_way(tiling: Tiling) -> int:
    """Stages that may be in flight, for wgmma those of weights: all except the one that is being multiplied. With wgmma
    that one is also occupied until the next stage has arrived, since it is released after the next one's products are
    issued. A window is an additional limit."""
    return tiling.window or tiling.num_stages - 1


def _input_turns(tiling: Tiling, depth: int) -> float:
    """Stages of `depth` k-steps divided by those in flight, for a ring of only inputs."""
    return depth / (tiling.input_stages - 1) if tiling.engine is Engine.WGMMA else 0.0


def _port_us(tile: Tile, element_bytes: int, weight_bits: int, gpu: Gpu, engine: EngineRates) -> float:
    """Time in which a stage passes the SM's port to the L2."""
    num_bytes = (tile.m * element_bytes + tile.n * weight_bits / 8) * tile.k
    return num_bytes / L2_BYTES_PER_CLOCK / gpu.clock_mhz / engine.port_share


def tensor_share(product_columns: int) -> float:
    """Share of the tensor cores' rate that a wgmma task with `product_columns` rows of B achieves, interpolated
    linearly between measurements."""
    columns, shares = zip(*_TENSOR_SHARES, strict=True)
    return float(np.interp(product_columns, columns, shares))


def k_step_us(graph: TileGraph, op_index: int, gpu: Gpu, rates: Rates) -> float:
    """Time of one k-step on the SM's own units: the slowest of them, at its achieved share of the peak rate. For
    other kinds of op, the kind computes it."""
    tiling, op = graph.tiling, graph.workload.tile_ops[op_index]
    if not op.IS_PRODUCT:
        return task_us(graph.workload, op, tiling.tiles[op_index], tiling.of_kind(op_index), gpu)
    tile, size = product_tile(op, tiling.cta_tiles[op_index]), graph.workload.dtype.size_bytes
    flops_per_s = gpu.tensor_flops_per_s * graph.workload.dtype.row.tensor_speed
    engine, us_per_flop = rates.of(tiling.engine), 1e6 * gpu.num_sms / flops_per_s
    port_us = _port_us(tile, size, op.weight_bits(graph.workload.dtype), gpu, engine)
    a_rows, b_rows = multiplied_by(tiling, op, tiling.cta_tiles[op_index])
    tensor_us = us_per_flop * 2 * a_rows * b_rows * tile.k / engine.tensor_share
    if tiling.engine is Engine.SIMT:
        # Each weight becomes fp32 and is multiplied by each row.
        product_us = (tile.m + 1) * tile.n * tile.k / FP32_LANES / gpu.clock_mhz / FP32_SHARE
        return max(port_us, product_us) + engine.step_us
    if tiling.engine is Engine.WGMMA:
        convert_us = converting_us(op, a_rows, tile.k, tiling.num_warps, gpu)
        share = tensor_share(columns_at_once(op, b_rows, swap_ab=tiling.swap_ab))
        product_us = tensor_us / share + promoting_us(graph, op_index, gpu)
        slowest_us = max(port_us, product_us, convert_us)
        return slowest_us + engine.step_us + GATHERING_STEP_US * op.GATHERS
    warps_m, warps_n = warp_grid(tiling.tiles[op_index], tiling.num_warps, op.rows_per_column) or (1, 1)
    # Each warp reads its own fragments: warp_m + warp_n rows, over all warps of the CTA.
    smem_us = (tile.m * warps_n + tile.n * warps_m) * tile.k * size / SMEM_BYTES_PER_CLOCK / gpu.clock_mhz
    return max(port_us, smem_us / engine.smem_share, tensor_us) + engine.step_us
