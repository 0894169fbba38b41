from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.box_cells import Tile, tiles_named, tiles_of, tiles_read, writers
from tests.support.cases import adds, decoder_block, gemms, graphs, tiling
from tuner.core.plan.graph.cover import Waits
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.ops.gemm.pairs import ffn_pair, independent_pair


@pytest.mark.slow
@given(graphs(), st.booleans())
def test_an_edge_is_where_a_read_overlaps_a_write(graph: TileGraph, strided: bool) -> None:
    check_edges(graph.with_parts(strided=strided))


@pytest.mark.slow
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("num_parts", [2, 3, 4])
@pytest.mark.parametrize("width", [16, 32, 48, 80, 144])
def test_parts_of_many_steps_read_what_these_overlap(width: int, num_parts: int, strided: bool) -> None:
    tiles = tiling((16, width), (16, 32), split=(1, num_parts))
    for d_hidden in (224, 331):
        graph = tile_graph(ffn_pair(m=16, d_in=32, d_hidden=d_hidden, d_out=32), tiles)
        check_edges(graph.with_parts(strided=strided))


def tasks_of(graph: TileGraph, whole: Callable[[Tile], bool]) -> list[list[int]]:
    """The words of one task for each whole tile, and for each part of the others."""
    tasks = []
    for tile in (tile for op in graph.op_indices for tile in tiles_of(graph, op)):
        parts = graph.num_parts(tile[0])
        taken = [graph.steps(tile[0], part, parts) for part in range(parts)]
        split = [[*tile, 0, 0, -1, part, parts, 0, own.start, len(own)] for part, own in enumerate(taken)]
        tasks += [[*tile, 0, 0, -1, 0, 0, 0, 0, 0]] if parts == 1 or whole(tile) else split
    return tasks


@pytest.mark.slow
@given(graphs(), st.booleans())
def test_a_late_edge_is_where_a_late_read_overlaps_a_write(graph: TileGraph, in_band: bool) -> None:
    graph = graph.with_in_band(graph.readers if in_band else 0)
    for tile in (tile for op in graph.op_indices for tile in tiles_of(graph, op)):
        assert tiles_named(graph, tile, is_late=True) == tiles_read(graph, tile, is_late=True)


def test_a_product_reads_its_own_tile_of_a_residual_and_whole_rows_of_a_norm_behind_its_last_step() -> None:
    """The boxes of a block are computed from its formula, independently of the code under test."""
    graph = tile_graph(decoder_block(40, 50, 60, 70), tiling((16, 32), (32, 16), (16, 48), (48, 32)))
    (down,) = graph.spaces[2].writes
    inputs, residual, weights = graph.spaces[2].reads
    assert (inputs.box.text((1, 0), 1), inputs.is_late) == ("up[16:32, 32:60]", False)
    assert (residual.box.text((1, 1)), residual.is_late) == ("o[16:32, 48:50]", True)
    assert (weights.box.text((1, 1), 1), weights.is_late) == ("down.weight[48:50, 32:60]", False)
    assert down.text((2, 0)) == "down[32:40, 0:48]"
    inputs, norm, *_ = graph.spaces[3].reads
    assert (norm.box.text((0, 2)), norm.is_late) == ("down[0:40, 0:50]", True)
    inputs, *late = graph.with_in_band(8).spaces[3].reads
    assert (inputs.in_band, inputs.is_late) == (True, False)
    assert [(read.box.text((0, 2)), read.is_late, read.in_band) for read in late[:2]] == [
        ("down[0:40, 0:50]", True, False)
    ] * 2


def test_late_waits_are_left_out_where_waits_before_the_steps_imply_them() -> None:
    """In the decoder block, only parts wait for the norm; of two ops that read one input, the second must wait."""
    block = tile_graph(decoder_block(16, 64, 32, 32), tiling(*[(16, 32)] * 4))
    assert [(edge.producer, edge.consumer, block.waits_for(edge)) for edge in block.late_edges] == [
        (0, 1, Waits.PARTS),
        (0, 2, Waits.NEVER),
        (2, 3, Waits.PARTS),
    ]
    siblings = gemms(16, ("a", "x", 64, 32, {}), ("b", "x", 64, 32, adds("a")))
    graph = tile_graph(siblings, tiling((16, 32), (16, 32)))
    assert [graph.waits_for(edge) for edge in graph.late_edges] == [Waits.ALWAYS]
    assert graph.posting_ops == {0}
    assert tile_graph(siblings, tiling((16, 32), (16, 32)), (1,)).late_edges == ()


def check_edges(graph: TileGraph) -> None:
    read: dict[tuple[int, ...], dict[Tile, int]] = {}  # by tile, part and number of parts
    for op in graph.op_indices:
        split = [(part, graph.num_parts(op)) for part in range(graph.num_parts(op)) if graph.num_parts(op) > 1]
        for tile, (part, num_parts) in product(tiles_of(graph, op), ((0, 0), *split)):
            read[*tile, part, num_parts] = tiles_read(graph, tile, part, num_parts)
            assert read[*tile, part, num_parts] == tiles_named(graph, tile, part, num_parts)
    for whole in (lambda tile: False, lambda tile: sum(tile) % 3 == 0, lambda tile: True):
        tasks = tasks_of(graph, whole)
        times = Counter(tuple(task[:3]) for task in tasks)
        count = sum(times[tile] for task in tasks for tile in read[*task[:3], *task[6:8]])
        assert graph.num_edges(np.array(tasks, dtype=np.int32)) == count


@pytest.mark.slow
@given(graphs(), st.booleans())
def test_the_parts_of_a_tile_read_its_operands_once(graph: TileGraph, strided: bool) -> None:
    graph = graph.with_parts(strided=strided)
    for index in graph.op_indices:
        num_parts = graph.num_parts(index)
        by_part = [graph.steps(index, part, num_parts) for part in range(num_parts)]
        assert all(by_part)
        assert {steps.step for steps in by_part} == {num_parts if strided else 1}
        assert sorted(step for steps in by_part for step in steps) == list(graph.steps(index))
        words = [
            [index, 0, 0, 0, 0, -1, part, num_parts * (num_parts > 1), 0, own.start, len(own)]
            for part, own in enumerate(by_part)
        ]
        from_words = graph.steps_of(np.array(words, dtype=np.int32)).tolist()
        assert from_words == [[own.start, own.step, len(own)] for own in by_part]
        for box in (read.box for read in graph.spaces[index].reads if not read.is_late):
            pieces = [box.at((0, 0), step)[1] for step in graph.steps(index)]
            assert all(piece.start < piece.stop for piece in pieces)
            assert [piece.stop for piece in pieces[:-1]] == [piece.start for piece in pieces[1:]]
            assert (pieces[0].start, pieces[-1].stop) == (0, graph.workload.tile_ops[index].k)


@pytest.mark.slow
@given(graphs())
def test_every_output_element_is_written_by_one_tile(graph: TileGraph) -> None:
    for index in graph.op_indices:
        op = graph.workload.tile_ops[index]
        cells = [cell for cell, tile in writers(graph).items() if tile[0] == index]
        assert sorted(cells) == [(op.name, row, col) for row in range(op.m) for col in range(op.n)]


@pytest.mark.parametrize(
    ("producer_m", "consumer_m", "first", "last"),
    [
        (128, 64, [0, 0, 1, 1, 2, 2], [1, 1, 2, 2, 3, 3]),
        (128, 192, [0, 1], [2, 3]),
        (64, 256, [0, 4], [4, 6]),
        (128, 128, [0, 1, 2], [1, 2, 3]),
    ],
)
def test_unequal_tile_heights_give_ranges_of_rows(
    producer_m: int, consumer_m: int, first: list[int], last: list[int]
) -> None:
    workload = ffn_pair(m=384, d_in=32, d_hidden=64, d_out=32)
    (edge,) = tile_graph(workload, tiling((producer_m, 32), (consumer_m, 32))).edges
    assert [bound.tolist() for bound in edge.rows] == [first, last]


def test_independent_ops_and_single_launches_have_no_edges() -> None:
    tiles = tiling((16, 32), (16, 32))
    pair = ffn_pair(m=64, d_in=64, d_hidden=64, d_out=64)
    for graph, num_edges in (
        (tile_graph(independent_pair((64, 64, 64), (32, 32, 32)), tiles), 0),
        (tile_graph(pair, tiles), 4 * 2 * 2),
        (tile_graph(pair, tiles, (1,)), 0),
    ):
        tasks = tasks_of(graph, lambda tile: True)
        assert graph.num_edges(np.array(tasks, dtype=np.int32)) == num_edges
    assert tile_graph(pair, tiles, (0,)).posting_ops == frozenset()


def test_a_graph_needs_a_tile_per_op_and_ops_that_exist() -> None:
    pair = ffn_pair(m=64, d_in=64, d_hidden=64, d_out=64)
    with pytest.raises(ValueError, match="2 ops need 2 tiles"):
        tile_graph(pair, tiling((16, 32)))
    for ops in ((), (2,), (1, 0)):
        with pytest.raises(ValueError, match="not ascending"):
            tile_graph(pair, tiling((16, 32), (16, 32)), ops)


def test_a_gated_tile_reads_the_rows_of_both_halves_and_its_residual() -> None:
    pair = ffn_pair(m=40, d_in=24, d_hidden=50, d_out=20, gated=True, residual=True)
    graph = tile_graph(pair, tiling((16, 32), (16, 32)))
    x, gate, up = (read.box for read in graph.spaces[0].reads)
    assert x.text((2, 1)) == "x[32:40, 0:24]"
    assert gate.text((2, 1)) == "up.weight[32:50, 0:24]"
    assert up.text((2, 1)) == "up.weight[82:100, 0:24]"
    assert graph.spaces[0].writes[0].text((2, 1)) == "up[32:40, 32:50]"
    assert graph.spaces[1].reads[1].box.text((2, 0)) == "down.residual[32:40, 0:20]"
