from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import adds, decoder_block, gemms, graphs, tiling
from tuner.core.plan.edges import EdgeKind, Waits
from tuner.core.plan.tile_graph import Region, TileGraph, tile_graph
from tuner.core.problem.workload import ffn_pair, independent_pair


def overlap(a: Region, b: Region) -> bool:
    rows = a.row_begin < b.row_end and b.row_begin < a.row_end
    return a.tensor == b.tensor and rows and a.col_begin < b.col_end and b.col_begin < a.col_end


def tiles_of(graph: TileGraph, op: int) -> list[tuple[int, int, int]]:
    rows, cols = graph.grids[op]
    return [(op, row, col) for row in range(rows) for col in range(cols)]


Tile = tuple[int, int, int]


def tiles_read(graph: TileGraph, tile: Tile, part: int, num_parts: int) -> dict[Tile, int]:
    """The tiles that a part of a tile reads as A, and in which of its k-steps it does so first."""
    first: dict[Tile, int] = {}
    num_operands = 1 + graph.workload.tile_ops[tile[0]].rows_per_column
    for number, step in enumerate(graph.steps(tile[0], part, num_parts)):
        for producer in graph.op_indices:
            for other in tiles_of(graph, producer):
                if any(overlap(region, graph.writes(*other)) for region in graph.reads(*tile, step)[:num_operands]):
                    first.setdefault(other, number)
    return first


def tiles_named(graph: TileGraph, tile: Tile, part: int, num_parts: int) -> dict[Tile, int]:
    edge = graph.edges_into(tile[0])
    if edge is None:
        return {}
    steps = graph.steps(tile[0], part, max(1, num_parts))
    needs = edge.needs(np.array([(steps.start, steps.step, len(steps))]))
    rows = range(edge.first[tile[1]], edge.last[tile[1]])
    return {(edge.producer, row, col): needs.first_reads[0, col] for row in rows for col in needs.columns(0)}


@given(graphs(), st.booleans())
def test_an_edge_is_where_a_read_overlaps_a_write(graph: TileGraph, strided: bool) -> None:
    check_edges(graph.with_parts(strided=strided))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("num_parts", [2, 3, 4])
@pytest.mark.parametrize("width", [16, 32, 48, 80, 144])
def test_parts_of_many_steps_read_what_these_overlap(width: int, num_parts: int, strided: bool) -> None:
    tiles = tiling((16, width), (16, 32), split=(1, num_parts))
    for d_hidden in (224, 331):
        graph = tile_graph(ffn_pair(m=16, d_in=32, d_hidden=d_hidden, d_out=32), tiles)
        check_edges(graph.with_parts(strided=strided))


def tasks_of(graph: TileGraph, whole: Callable[[Tile], bool]) -> list[list[int]]:
    """The words of one task for each tile that stays whole, and for each part of the others."""
    tasks = []
    for tile in (tile for op in graph.op_indices for tile in tiles_of(graph, op)):
        parts = graph.num_parts(tile[0])
        taken = [graph.steps(tile[0], part, parts) for part in range(parts)]
        split = [[*tile, 0, 0, -1, part, parts, 0, own.start, len(own)] for part, own in enumerate(taken)]
        tasks += [[*tile, 0, 0, -1, 0, 0, 0, 0, 0]] if parts == 1 or whole(tile) else split
    return tasks


@given(graphs())
def test_an_epilogue_reads_its_own_tile_of_a_residual_and_whole_rows_of_a_norm(graph: TileGraph) -> None:
    for tile in (tile for op in graph.op_indices for tile in tiles_of(graph, op)):
        op = tile[0]
        named, out = set(), graph.writes(*tile)
        for edge in (edge for edge in graph.epilogue_edges if edge.consumer == op):
            (first,), (last,) = edge.columns(np.array([tile[2]]))
            rows = range(edge.first[tile[1]], edge.last[tile[1]])
            named |= {(edge.kind, edge.producer, row, col) for row in rows for col in range(first, last)}
        wide = {EdgeKind.RESIDUAL: out, EdgeKind.NORM: replace(out, col_begin=0, col_end=2**31)}
        tensors = {EdgeKind.RESIDUAL: "residual_source", EdgeKind.NORM: "norm"}
        assert named == {
            (kind, *other)
            for kind, region in wide.items()
            for producer in graph.op_indices
            for other in tiles_of(graph, producer)
            if overlap(
                replace(region, tensor=getattr(graph.workload.tile_ops[op], tensors[kind])), graph.writes(*other)
            )
        }


def test_waits_for_an_epilogue_are_left_out_where_waits_for_a_imply_them() -> None:
    """Of the decoder block only parts wait, for the norm; of two ops that read one input the second must wait."""
    block = tile_graph(decoder_block(16, 64, 32, 32), tiling(*[(16, 32)] * 4))
    assert [(edge.kind, edge.producer, edge.consumer, edge.waits) for edge in block.epilogue_edges] == [
        (EdgeKind.NORM, 0, 1, Waits.PARTS),
        (EdgeKind.RESIDUAL, 0, 2, Waits.NEVER),
        (EdgeKind.NORM, 2, 3, Waits.PARTS),
    ]
    siblings = gemms(16, ("a", "x", 64, 32, {}), ("b", "x", 64, 32, adds("a")))
    graph = tile_graph(siblings, tiling((16, 32), (16, 32)))
    assert [edge.waits for edge in graph.epilogue_edges] == [Waits.ALWAYS]
    assert graph.posting_ops == {0}
    assert tile_graph(siblings, tiling((16, 32), (16, 32)), (1,)).epilogue_edges == ()


def check_edges(graph: TileGraph) -> None:
    read: dict[tuple[int, ...], dict[Tile, int]] = {}  # by tile, part and the parts of the tile
    for op in graph.op_indices:
        split = [(part, graph.num_parts(op)) for part in range(graph.num_parts(op)) if graph.num_parts(op) > 1]
        for tile, (part, num_parts) in product(tiles_of(graph, op), ((0, 0), *split)):
            read[*tile, part, num_parts] = tiles_read(graph, tile, part, max(1, num_parts))
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
        num_operands = 1 + graph.workload.tile_ops[index].rows_per_column
        for operand, whole in enumerate(graph.reads(index, 0, 0)[:num_operands]):
            pieces = [graph.reads(index, 0, 0, step)[operand] for step in graph.steps(index)]
            assert all(piece.num_elements > 0 for piece in pieces)
            assert [piece.col_end for piece in pieces[:-1]] == [piece.col_begin for piece in pieces[1:]]
            assert (pieces[0].col_begin, pieces[-1].col_end) == (whole.col_begin, whole.col_end)


@given(graphs())
def test_every_output_element_is_written_by_one_tile(graph: TileGraph) -> None:
    for index in graph.op_indices:
        op = graph.workload.tile_ops[index]
        written = np.zeros((op.m, op.n), dtype=int)
        for tile in tiles_of(graph, index):
            out = graph.writes(*tile)
            assert out.num_elements > 0
            written[out.row_begin : out.row_end, out.col_begin : out.col_end] += 1
        assert (written == 1).all()


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
    assert (edge.first.tolist(), edge.last.tolist()) == (first, last)


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
    x, gate, up = graph.reads(0, 2, 1)
    assert (x.tensor, gate.tensor, up.tensor) == ("x", "up.weight", "up.weight")
    assert (gate.row_begin, gate.row_end) == (32, 50)
    assert (up.row_begin, up.row_end) == (82, 100)
    assert graph.writes(0, 2, 1).num_elements == 8 * 18
    *_, residual = graph.reads(1, 2, 0)
    assert residual == replace(graph.writes(1, 2, 0), tensor="down.residual")
