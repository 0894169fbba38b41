"""Boxes that overlap, or that read unwritten elements, are refused with their tiles; compared cell by cell."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.support.box_cells import cells, tiles_of
from tests.support.box_graphs import BoxGraph, box_graph, box_graphs
from tests.support.cases import graphs
from tuner.core.plan.graph.boxes import STEP, Box, BoxRead, Extent, TileSpace, along, whole
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.proof.box_coverage import check_boxes
from tuner.errors import CoverageError


def tiles_of_shape(name: str, size: int, tile: int, *reads: BoxRead, width: int = 4) -> TileSpace:
    """Tiles of whole rows of a tensor [size, width]."""
    box = Box(tensor=name, extents=(along(0, size, tile), whole(width)))
    return TileSpace(name=name, grid=(-(-size // tile),), num_steps=2, writes=(box,), reads=reads)


def read_of(rows: Extent, columns: Extent, **options: bool) -> BoxRead:
    return BoxRead(box=Box(tensor="a", extents=(rows, columns)), **options)


def problem_of(graph: BoxGraph | TileGraph) -> str:
    try:
        check_boxes(graph)
    except CoverageError as error:
        return f"{error.problem}: {error.witness}"
    return ""


@given(graphs())
def test_boxes_of_products_are_written_once_and_what_is_read_is_written(graph: TileGraph) -> None:
    assert problem_of(graph) == ""


@pytest.mark.slow
@given(box_graphs())
def test_a_box_is_refused_exactly_where_its_cells_are_not_all_written(graph: BoxGraph) -> None:
    """The cells of `box_graphs` are written once."""
    wrote = {
        cell
        for op in graph.op_indices
        for tile in tiles_of(graph, op)
        for box in graph.spaces[op].writes
        for cell in cells(box, graph.spaces[op].coordinates(*tile[1:]))
    }
    lacking = any(
        cells(read.box, space.coordinates(*tile[1:]), step) - wrote
        for op, space in graph.spaces.items()
        for tile in tiles_of(graph, op)
        for read in space.reads
        for step in range(space.num_steps)
    )
    assert bool(problem_of(graph)) == lacking


def test_what_is_wrong_is_named_by_tile_tensor_and_box() -> None:
    first = tiles_of_shape("a", 6, 2)
    wide = tiles_of_shape("b", 6, 2, read_of(along(0, 6, 2, before=1, after=1), whole(4)))
    assert problem_of(box_graph(first, wide)) == ""
    rows = along(0, 6, 2)
    beyond = Extent(axes=(0,), begin=rows.begin, end=rows.end + 1)
    late = tiles_of_shape("b", 6, 2, read_of(beyond, whole(4), is_late=True))
    assert problem_of(box_graph(first, late)) == (
        "a task reads what no task writes: b tile 2,0's box a[4:7, 0:4], read in step 0, is not fully written"
    )
    by_step = tiles_of_shape("b", 6, 2, read_of(rows, Extent(axes=(STEP,), begin=STEPS, end=STEPS + 3)))
    assert problem_of(box_graph(first, by_step)) == (
        "a task reads what no task writes: b tile 0,0's box a[0:2, 2:5], read in step 1, is not fully written"
    )


STEPS = along(STEP, 4, 2).begin


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_box_off_by_one_is_written_twice_or_leaves_a_gap(shift: int) -> None:
    rows = along(0, 6, 2)
    begin = rows.begin.copy()
    begin[1] += shift
    box = Box(tensor="a", extents=(Extent(axes=(0,), begin=begin, end=rows.end.copy()), whole(4)))
    moved = TileSpace(name="a", grid=(3,), num_steps=1, writes=(box,), reads=())
    reader = tiles_of_shape("b", 6, 2, read_of(rows, whole(4)))
    assert problem_of(box_graph(moved, reader)) == (
        "an element is written twice: a tile 0,0's box a[0:2, 0:4] and a tile 1,0's box a[1:4, 0:4], both written, "
        "overlap"
        if shift < 0
        else "a task reads what no task writes: b tile 1,0's box a[2:4, 0:4], read in step 0, is not fully written"
    )


def test_two_ops_that_write_one_element_are_refused() -> None:
    upper, lower = tiles_of_shape("a", 6, 2), tiles_of_shape("a", 8, 4)
    assert problem_of(box_graph(upper, lower)).startswith("an element is written twice: a tile 0,0's box a[0:2, 0:4]")


def test_a_tensor_of_another_number_of_dimensions_is_refused() -> None:
    flat = BoxRead(box=Box(tensor="a", extents=(along(0, 6, 2),)))
    assert "a different number of dimensions" in problem_of(
        box_graph(tiles_of_shape("a", 6, 2), tiles_of_shape("b", 6, 2, flat))
    )
