"""Edges between boxes of any form are exactly where cells are shared, by both algorithms that find them."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests.support.box_cells import tiles_named, tiles_of, tiles_read
from tests.support.box_graphs import BoxGraph, box_graph, box_graphs
from tests.support.cases import graphs
from tuner.core.plan.graph import needs
from tuner.core.plan.graph.boxes import STEP, Bound, Box, BoxRead, Extent, RunTimeInput, TileSpace, along, whole
from tuner.core.plan.graph.tile_graph import TileGraph


@pytest.mark.slow
@given(box_graphs())
def test_an_edge_is_where_a_box_that_is_read_overlaps_one_that_is_written(graph: BoxGraph) -> None:
    """A tile that updates its own box in place has no edge to itself."""
    for tile, is_late in product((tile for op in graph.op_indices for tile in tiles_of(graph, op)), (False, True)):
        most = graph.num_parts(tile[0])
        for parts in [(), *((part, most) for part in range(most if most > 1 and not is_late else 0))]:
            named, read = (of(graph, tile, *parts, is_late=is_late) for of in (tiles_named, tiles_read))
            assert named in (read, {other: step for other, step in read.items() if other != tile})


@pytest.mark.slow
def test_the_sample_has_boxes_of_both_forms() -> None:
    """Otherwise, one of the two algorithms would not be tested."""
    seen: Counter[bool] = Counter()

    @given(box_graphs())
    def count(graph: BoxGraph) -> None:
        seen.update(needs.factors(edge.read, edge.writer) is None for edge in graph.edges)

    count()
    assert min(seen[True], seen[False]) >= 15


@given(graphs())
def test_boxes_of_products_are_separable_and_give_the_same_where_each_is_held_against_each(graph: TileGraph) -> None:
    for edge in graph.edges:
        assert needs.factors(edge.read, edge.writer) is not None
        one = edge.needs_of_tiles()
        steps = np.tile([0, 1, edge.reader.num_steps], (edge.reader.num_tiles, 1))
        other = needs._of_pairs(edge.read, edge.writer, edge.reader.all_places, steps)
        for tile in range(edge.reader.num_tiles):
            mine, theirs = one.entries(one.of[tile]), other.entries(other.of[tile])
            assert one.tiles[mine].tolist() == other.tiles[theirs].tolist()
            assert one.steps[mine].tolist() == other.steps[theirs].tolist()


# In CI, the test above has the edges.
@pytest.mark.soak
@given(box_graphs())
def test_rows_of_an_edge_are_those_of_its_tiles(graph: BoxGraph) -> None:
    for edge in graph.edges:
        first, last = (bound.tolist() for bound in edge.rows)
        for row in range(edge.reader.word_grid[0]):
            read: set[int] = set()
            for col in range(edge.reader.word_grid[1]):
                tile = (edge.consumer, row, col)
                reads = tiles_read(box_graph_of(edge.read, graph, edge.consumer), tile, is_late=edge.is_late)
                read |= {other[1] for other in reads if other[0] == edge.producer}
            assert list(range(first[row], last[row])) == (list(range(min(read), max(read) + 1)) if read else [])


def test_a_box_that_goes_by_steps_in_two_dimensions_is_a_diagonal() -> None:
    writes = Box(tensor="a", extents=(along(0, 4, 1), along(1, 4, 2)))
    read = BoxRead(box=Box(tensor="a", extents=(along(STEP, 4, 1), along(STEP, 4, 1))))
    own = Box(tensor="b", extents=(along(0, 1, 1),))
    reader = TileSpace(name="b", grid=(1,), num_steps=4, writes=(own,), reads=(read,))
    graph = box_graph(TileSpace(name="a", grid=(4, 2), num_steps=1, writes=(writes,), reads=()), reader)
    assert tiles_named(graph, (1, 0, 0)) == {(0, 0, 0): 0, (0, 1, 0): 1, (0, 2, 1): 2, (0, 3, 1): 3}


def test_a_box_that_is_empty_in_another_dimension_has_no_rows() -> None:
    """Found by chance: considering only the rows, it overlaps."""
    writes = Box(tensor="a", extents=(along(0, 2, 1), along(1, 2, 1)))
    empty = Extent(axes=(), begin=np.array(1), end=np.array(1))
    read = BoxRead(box=Box(tensor="a", extents=(along(0, 2, 1), empty)), is_late=True)
    reader = TileSpace(
        name="b", grid=(2,), num_steps=1, writes=(Box(tensor="b", extents=(along(0, 2, 1),)),), reads=(read,)
    )
    (edge,) = box_graph(TileSpace(name="a", grid=(2, 2), num_steps=1, writes=(writes,), reads=()), reader).edges
    first, last = edge.rows
    assert (first == last).all()
    assert not edge.needs_of_tiles().tiles.size


def box_graph_of(read: BoxRead, graph: BoxGraph, consumer: int) -> BoxGraph:
    """The same ops, but op `consumer` only has `read`, and is not split."""
    ops = [
        TileSpace(
            name=space.name,
            grid=space.grid,
            num_steps=space.num_steps,
            writes=space.writes,
            reads=(read,) if op == consumer else (),
            row_axes=space.row_axes,
        )
        for op, space in graph.spaces.items()
    ]
    return box_graph(*ops)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (lambda: Extent(axes=(1, 0), begin=np.zeros((2, 2)), end=np.zeros((2, 2))), "must ascend"),
        (lambda: Extent(axes=(STEP, 0), begin=np.zeros((2, 2)), end=np.zeros((2, 2))), "STEP comes last"),
        (lambda: Extent(axes=(0,), begin=np.zeros(2), end=np.zeros(3)), "have the shapes"),
        (lambda: Extent(axes=(0,), begin=np.zeros(2), end=np.ones(2)), "float64 .* use int64, 0 and more"),
        (lambda: Extent(axes=(0,), begin=np.array([-1, 0]), end=np.array([1, 2])), "from -1 on; use int64"),
        (lambda: space_of((along(0, 6, 2),), grid=()), r"a grid of \(\), 3 steps"),
        (lambda: space_of((along(0, 6, 2),), grid=(3, 0)), r"a grid of \(3, 0\)"),
        (lambda: space_of((along(0, 6, 2),), grid=(3,), num_parts=0), "3 steps in 0 parts"),
        (lambda: space_of((along(0, 6, 2),), grid=(3,), row_axes=2), "2 row axes"),
        (lambda: space_of((along(0, 6, 2),), grid=(3,), bounds=(bound("b", 0),)), "bounds b in dimension 0 by None"),
        (
            lambda: space_of((along(0, 6, 2),), grid=(3,), bounds=(bound("a", 1),)),
            ("which is not a dimension of any of its boxes"),
        ),
        (lambda: space_of((along(0, 6, 2),), grid=(3,), bounds=(bound("a", 0, 0),)), "in dimension 0 by 0, which"),
        (lambda: space_of((along(0, 6, 2),), grid=(3,), bounds=(bound("a", -1),)), "in dimension -1 by None, which"),
        (lambda: RunTimeInput(name="n", count=1, least=3, most=2), "1 numbers of 3 to 2; .* 0 <= least <= most"),
        (lambda: RunTimeInput(name="n", count=0, least=0, most=2), "at least"),
        (
            lambda: BoxRead(box=Box(tensor="a", extents=(along(STEP, 4, 2),)), is_late=True),
            "does not move with the steps",
        ),
        (lambda: space_of((along(0, 6, 2),), grid=(4,)), r"must be \(4,\)"),
        (lambda: space_of((along(STEP, 6, 2),), grid=(3,)), "writes one box of a"),
        (lambda: space_of((whole(0),), grid=(3,)), "not be empty"),
    ],
)
def test_boxes_that_fit_no_grid_are_refused(broken: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        broken()  # type: ignore[operator]


def space_of(extents: tuple[Extent, ...], grid: tuple[int, ...], **options: Any) -> TileSpace:
    box = Box(tensor="a", extents=extents)
    return TileSpace(name="a", grid=grid, num_steps=3, writes=(box,), reads=(), **options)


def bound(tensor: str, dimension: int, by: int | None = None) -> Bound:
    return Bound(tensor=tensor, dimension=dimension, limit=RunTimeInput(name="n", count=1, least=0, most=6), by=by)
