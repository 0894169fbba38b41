from __future__ import annotations

import pytest
from hypothesis import given

from tests.support.cases import chain_of_three, fork, ordered_graphs, tiling
from tuner.core.plan.build import global_order, proportional
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.interleaves import longest_first, merge_blocks
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Interleave, InterleaveKind, Ordering
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

#: 4 x 3 and 4 x 2 tiles.
PAIR = ffn_pair(m=64, d_in=32, d_hidden=96, d_out=64)
TILES = tiling((16, 32), (16, 32)).tiles


def spelled(kind: InterleaveKind = InterleaveKind.BANDS, workload: Workload = PAIR, **numbers: int) -> str:
    """The op, rows and columns of each block."""
    ops = tuple(range(len(workload.tile_ops)))
    blocks = merge_blocks(workload, TILES, ops, Interleave(kind=kind, **numbers))
    return " ".join(f"{'AB'[b.op]}{b.row_begin}-{b.row_end}:{b.col_begin}-{b.col_end}" for b in blocks)


def test_a_lag_leaves_the_consumer_so_many_bands_behind() -> None:
    assert spelled(rows=1, lag=1) == "A0-2:0-3 B0-1:0-2 A2-3:0-3 B1-2:0-2 A3-4:0-3 B2-4:0-2"
    assert spelled(rows=2, lag=1) == "A0-4:0-3 B0-4:0-2"


def test_later_column_chunks_come_after_the_producer() -> None:
    assert spelled(rows=2, chunks=2) == "A0-2:0-3 B0-2:0-1 A2-4:0-3 B2-4:0-1 B0-4:1-2"


def test_half_rows_take_turns_one_row_behind() -> None:
    halves = "A0-1:0-2 A0-1:2-3 A1-2:0-2 B0-1:0-1 A1-2:2-3 B0-1:1-2"
    assert spelled(InterleaveKind.HALF_ROWS).startswith(halves)
    assert spelled(InterleaveKind.HALF_ROWS).endswith("B3-4:0-1 B3-4:1-2")


def test_the_longest_chain_comes_first_and_a_producer_before_its_consumer() -> None:
    short_first = independent_pair((32, 32, 32), (32, 64, 320))
    assert spelled(InterleaveKind.LONGEST_FIRST, short_first) == "B0-2:0-2 A0-2:0-1"
    assert longest_first(PAIR, TILES, (0, 1)) == (0, 1)
    three = tiling((16, 32), (16, 32), (16, 128)).tiles
    assert longest_first(fork(32, (32, 32, 32, 256)), three, (0, 1, 2)) == (0, 2, 1)
    assert longest_first(chain_of_three(32, (32, 32, 32, 32)), three, (0, 1, 2)) == (0, 1, 2)


def test_a_proportional_mix_keeps_every_prefix_in_proportion() -> None:
    counts = [64, 12, 5]
    which = [next(i for i in range(3) if index < sum(counts[: i + 1])) for index in proportional(counts).tolist()]
    for length in range(1, sum(counts) + 1):
        for op, count in enumerate(counts):
            assert abs(which[:length].count(op) - length * count / sum(counts)) <= 1.5


@pytest.mark.slow
@given(ordered_graphs())
def test_no_tile_stands_before_one_that_it_reads(case: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, order, _ = case
    place = {
        tile: i for i, tile in enumerate(zip(*(column.tolist() for column in global_order(graph, order)), strict=True))
    }
    for edge in graph.early_edges:
        rows, cols = graph.grids[edge.consumer]
        for row in range(rows):
            first, last_row = (int(bound[row]) for bound in edge.rows)
            reads = range(first, last_row)
            last = max(place[edge.producer, r, c] for r in reads for c in range(graph.grids[edge.producer][1]))
            assert all(place[edge.consumer, row, col] > last for col in range(cols))


def test_one_op_alone_is_one_order_whatever_the_merge() -> None:
    alone = tile_graph(PAIR, tiling((16, 32), (16, 32)), (1,))
    for kind in set(InterleaveKind) - {InterleaveKind.GIVEN}:  # which names its tiles itself
        blocks = merge_blocks(PAIR, TILES, alone.op_indices, Interleave(kind=kind, rows=kind is InterleaveKind.BANDS))
        assert {block.op for block in blocks} == {1}
