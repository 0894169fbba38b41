from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import chain_of_three, ordered_graphs, ordering, rasters, small_gpu, tiling
from tuner.core.plan.build import global_order, make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.interleaves import merge_blocks
from tuner.core.plan.order.rasters import hilbert, raster_order
from tuner.core.plan.order.split_tasks import parted
from tuner.core.plan.table.header import STATIC
from tuner.core.plan.two_streams import make_paired_plans
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitTiles,
)
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

#: Columns of a task: op, tile row, tile column, part, and the parts of its tile.
WHO = [0, 1, 2, 6, 7]


def spelled_out(raster: Raster, num_rows: int, num_cols: int) -> list[tuple[int, int]]:
    """The walk, written as loops."""
    rows, cols = range(num_rows), range(num_cols)
    match raster.kind:
        case RasterKind.ROW:
            return [(row, col) for row in rows for col in cols]
        case RasterKind.COLUMN:
            return [(row, col) for col in cols for row in rows]
        case RasterKind.GROUPED:
            groups = [rows[i : i + raster.width] for i in range(0, num_rows, raster.width)]
            return [(row, col) for group in groups for col in cols for row in group]
        case RasterKind.PANEL:
            panels = [cols[i : i + raster.width] for i in range(0, num_cols, raster.width)]
            return [(row, col) for panel in panels for row in rows for col in panel]
        case RasterKind.SNAKE:
            panels = [cols[i : i + raster.width] for i in range(0, num_cols, raster.width)]
            turns = [list(rows)[:: -1 if i % 2 else 1] for i in range(len(panels))]
            return [(row, col) for panel, turn in zip(panels, turns, strict=True) for row in turn for col in panel]
        case RasterKind.MORTON:
            bits = {n: f"{n:08b}" for n in range(256)}
            code = {(r, c): "".join(a + b for a, b in zip(bits[r], bits[c], strict=True)) for r in rows for c in cols}
            return sorted(code, key=code.__getitem__)
        case RasterKind.HILBERT:
            return list(hilbert(num_rows, num_cols))
    raise AssertionError(raster)


@given(rasters, st.integers(1, 7), st.integers(1, 7))
def test_a_raster_walks_as_its_definition_says(raster: Raster, num_rows: int, num_cols: int) -> None:
    rows, cols = raster_order(raster, num_rows, num_cols)
    assert list(zip(rows.tolist(), cols.tolist(), strict=True)) == spelled_out(raster, num_rows, num_cols)


@pytest.mark.slow
@given(ordered_graphs())
def test_every_tile_is_in_the_global_order_once(case: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, order, _ = case
    tiles = list(zip(*(column.tolist() for column in global_order(graph, order)), strict=True))
    assert len(set(tiles)) == len(tiles) == sum(rows * cols for rows, cols in graph.grids.values())
    tasks = parted(graph, global_order(graph, order))[:, WHO].tolist()
    split = {op: graph.num_parts(op) if graph.num_parts(op) > 1 else 0 for op in graph.op_indices}
    assert tasks == [[*tile, part, split[tile[0]]] for tile in tiles for part in range(max(1, split[tile[0]]))]
    assert len(tasks) == graph.num_tasks


@pytest.mark.slow
@given(ordered_graphs())
def test_part_major_sweeps_each_run_of_an_op_part_by_part(case: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, order, _ = case
    plain = parted(graph, global_order(graph, order)).tolist()
    swept = parted(graph, global_order(graph, order), part_major=True)
    wanted = []
    for _, run in groupby(plain, key=lambda task: task[0]):
        wanted += sorted(run, key=lambda task: task[6])
    assert swept.tolist() == wanted


def blocks_of(graph: TileGraph, order: Ordering) -> list[tuple[int, int, int]]:
    blocks = merge_blocks(graph.workload, graph.tiling.tiles, graph.op_indices, order.interleave)
    return [(block.op, block.row_begin, block.row_end) for block in blocks]


def test_bands_emit_each_consumer_row_as_soon_as_its_inputs_are_complete() -> None:
    graph = tile_graph(ffn_pair(m=96, d_in=32, d_hidden=64, d_out=32), tiling((16, 32), (32, 32)))
    assert blocks_of(graph, ordering()) == [(0, 0, 6), (1, 0, 3)]
    assert blocks_of(graph, ordering(bands=2)) == [(0, 0, 2), (1, 0, 1), (0, 2, 4), (1, 1, 2), (0, 4, 6), (1, 2, 3)]
    assert blocks_of(graph, ordering(bands=3)) == [(0, 0, 3), (1, 0, 1), (0, 3, 6), (1, 1, 3)]


def test_bands_reach_through_a_chain_of_three() -> None:
    graph = tile_graph(chain_of_three(64, (32, 32, 32, 32)), tiling((16, 32), (32, 32), (16, 32)))
    half = [(0, 0, 2), (1, 0, 1), (2, 0, 2)]
    assert blocks_of(graph, ordering(3, bands=2)) == [*half, (0, 2, 4), (1, 1, 2), (2, 2, 4)]


def test_bands_of_independent_ops_alternate_in_proportion() -> None:
    graph = tile_graph(independent_pair((32, 32, 32), (64, 32, 32)), tiling((16, 32), (16, 32)))
    assert blocks_of(graph, ordering(bands=1)) == [(0, 0, 1), (1, 0, 2), (0, 1, 2), (1, 2, 4)]


def test_rows_with_the_same_needs_share_a_wait_and_only_producers_post() -> None:
    graph = tile_graph(ffn_pair(m=128, d_in=32, d_hidden=96, d_out=64), tiling((64, 32), (32, 32)))
    plan = make_plan(graph, ordering(granularity=Granularity.ROW), small_gpu(2))
    assert plan.waits.tolist() == [[0, 1, 3, 3, 0], [1, 2, 3, 3, 0]]
    plan = make_plan(graph, ordering(granularity=Granularity.TILE), small_gpu(2))
    assert plan.waits.tolist() == [[0, 3, 1, 1, 0], [3, 6, 1, 1, 0]]
    assert plan.num_signals == 6
    ups, downs = (plan.tasks[plan.tasks[:, 0] == op] for op in (0, 1))
    assert sorted(ups[:, 5].tolist()) == list(range(6))
    assert (downs[:, 5] == -1).all()
    assert (ups[:, 3] == ups[:, 4]).all()
    assert (downs[:, 4] - downs[:, 3] == 1).all()


@pytest.mark.slow
@given(ordered_graphs())
def test_static_queues_are_the_global_order_dealt_round_robin(case: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, order, gpu = case
    plan = make_plan(graph, order, gpu)
    assert plan.num_ctas == min(graph.num_tasks, order.ctas_per_sm * gpu.num_sms)
    if order.assignment.is_static:
        assert plan.assignment == STATIC
    if (order.assignment, order.partition) == (Assignment.STATIC, 0) and order.split_tiles is not SplitTiles.STREAM:
        for cta in range(plan.num_ctas):
            queue = plan.tasks[plan.queues[cta] : plan.queues[cta + 1]][:, WHO]
            assert queue.tolist() == in_global_order(graph, order, gpu)[cta :: plan.num_ctas]
    if order.assignment is Assignment.TICKET:
        assert plan.tasks[:, WHO].tolist() == in_global_order(graph, order, gpu)
        assert plan.queues.size == 0


def in_global_order(graph: TileGraph, order: Ordering, gpu: Gpu) -> list[list[int]]:
    """The tasks of one list, in order: with a split tail, the tiles of whole waves of CTAs are whole, over all ops or
    for each."""
    tiles = list(zip(*(column.tolist() for column in global_order(graph, order)), strict=True))
    num_ctas = order.ctas_per_sm * gpu.num_sms
    is_each = order.split_tiles is SplitTiles.TAILS
    seen: Counter[int] = Counter()
    tasks: list[list[int]] = []
    for tile in tiles:
        parts, wave = graph.num_parts(tile[0]), tile[0] if is_each else -1
        num_tiles = sum(other[0] == tile[0] for other in tiles) if is_each else len(tiles)
        is_tail = seen[wave] >= num_tiles // num_ctas * num_ctas
        is_whole = parts == 1 or (order.split_tiles in (SplitTiles.TAIL, SplitTiles.TAILS) and not is_tail)
        seen[wave] += 1
        tasks += [[*tile, 0, 0]] if is_whole else [[*tile, part, parts] for part in range(parts)]
    return tasks


@pytest.mark.slow
@given(ordered_graphs())
def test_every_tile_in_parts_has_a_slot_of_its_own_and_whole_tiles_have_none(
    case: tuple[TileGraph, Ordering, Gpu],
) -> None:
    plan = make_plan(*case)
    slots = {tuple(task[:3]): task[8] for task in plan.tasks.tolist() if task[7]}
    assert all(slots[tuple(task[:3])] == task[8] for task in plan.tasks.tolist() if task[7])
    assert [slots[tile] for tile in sorted(slots)] == list(range(plan.num_split_tiles))


def test_the_tail_of_a_partition_is_that_of_each_side() -> None:
    graph = tile_graph(ffn_pair(m=16, d_in=64, d_hidden=448, d_out=352), tiling((16, 32), (16, 32), split=(2, 3)))
    order = ordering(assignment=Assignment.STATIC, partition=4, split_tiles=SplitTiles.TAIL)
    plan = make_plan(graph, order, small_gpu(8))  # 14 and 11 tiles on 4 CTAs each
    split = {tuple(task[:3]) for task in plan.tasks.tolist() if task[7]}
    assert split == {(0, 0, 12), (0, 0, 13), (1, 0, 8), (1, 0, 9), (1, 0, 10)}
    assert plan.num_tasks == 14 + 2 + 11 + 6


def test_the_grid_of_a_partition_is_the_one_that_its_tails_are_cut_for() -> None:
    """8 CTAs, 4 for each side: whole tiles and parts are 7 tasks, which does not justify a smaller grid."""
    graph = tile_graph(ffn_pair(m=16, d_in=64, d_hidden=160, d_out=32), tiling((16, 32), (16, 32), split=(2, 1)))
    order = ordering(assignment=Assignment.STATIC, partition=4, split_tiles=SplitTiles.TAIL)
    plan = make_plan(graph, order, small_gpu(8))
    assert plan.num_ctas == 8
    assert [task[:3] for task in plan.tasks.tolist() if task[7]] == [[0, 0, 4]] * 2
    assert plan.queues.tolist() == [0, 2, 4, 5, 6, 7, 7, 7, 7]


def test_the_tail_of_two_launches_is_that_of_each() -> None:
    workload = ffn_pair(m=16, d_in=64, d_hidden=448, d_out=352)
    whole = tile_graph(workload, tiling((16, 32), (16, 32), split=(2, 3)))
    order = ordering(assignment=Assignment.STATIC, split_tiles=SplitTiles.TAIL)
    fused = make_plan(whole, order, small_gpu(4))  # 25 tiles
    assert [task[:3] for task in fused.tasks.tolist() if task[7]] == [[1, 0, 10]] * 3
    apart = [make_plan(tile_graph(workload, whole.tiling, (op,)), order, small_gpu(4)) for op in (0, 1)]
    assert [plan.num_split_tiles for plan in apart] == [2, 3]
    beside = make_paired_plans(whole, order, small_gpu(4))
    assert [plan.num_split_tiles for plan in beside] == [5, 5]
    for one, other in zip(apart, beside, strict=True):
        assert one.tasks[:, WHO].tolist() == other.tasks[:, WHO].tolist()
    assert {task[8] for plan in beside for task in plan.tasks.tolist() if task[7]} == set(range(5))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 100])
def test_any_band_width_makes_an_order(rows: int) -> None:
    graph = tile_graph(ffn_pair(m=100, d_in=32, d_hidden=64, d_out=32), tiling((16, 32), (48, 32)))
    order = ordering(interleave=Interleave(kind=InterleaveKind.BANDS, rows=rows))
    assert len(global_order(graph, order)[0]) == graph.num_tasks
