"""Tiles of convolutions read exactly the pixels that they need; a plan without some of them is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.soak import convs as soak
from tests.support import oracle
from tests.support.box_graphs import BoxGraph, box_graph
from tests.support.convs import conv, pooling, tiling, workload
from tests.support.halo_ops import prove, random_plan
from tests.support.proof import judged_plans
from tests.support.second_oracle.agreement import DISAGREEMENTS, counts, judged_cases
from tuner.core.plan.graph.boxes import Extent
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.schedule.ordering import Granularity
from tuner.core.schedule.tiling import Tile
from tuner.errors import SafetyError
from tuner.ops.conv.images import ImageOp
from tuner.ops.conv.lowering import read_pixels
from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pooling.lowering import lower
from tuner.ops.conv.pooling.op import PoolingOp


def pixels_of(op: ImageOp, pixels: range) -> set[int]:
    """The input pixels of the output pixels `pixels`, found one by one from the definition."""
    found = set[int]()
    for pixel in pixels:
        image, place = divmod(pixel, op.out_height * op.out_width)
        row, column = (side * op.stride - op.padding for side in divmod(place, op.out_width))
        found |= {
            (image * op.height + y) * op.width + x
            for y in range(row, row + op.kernel)
            for x in range(column, column + op.kernel)
            if 0 <= y < op.height and 0 <= x < op.width
        }
    return found


def test_a_tile_reads_from_the_first_pixel_that_it_is_made_of_to_the_last() -> None:
    rng = random.Random(1)
    for _ in range(60):
        kernel, stride = rng.choice((1, 3, 5, 7)), rng.choice((1, 2))
        padding = rng.randint(0, kernel // 2)
        least = kernel - 2 * padding
        sizes = {"images": rng.randint(1, 4), "height": rng.randint(least, 9), "width": rng.randint(least, 9)}
        (op,) = workload(conv("a", **sizes, kernel=kernel, stride=stride, padding=padding)).tile_ops
        assert isinstance(op, ConvOp)
        tile_m = rng.choice((1, 2, 3, 5, 16, 64))
        read = read_pixels(op, tile_m)
        for tile, (begin, end) in enumerate(zip(read.begin.tolist(), read.end.tolist(), strict=True)):
            wanted = pixels_of(op, range(tile * tile_m, min(op.m, (tile + 1) * tile_m)))
            assert (begin, end) == (min(wanted), max(wanted) + 1) if wanted else begin == end, (op, tile)


def test_a_pooling_reads_the_pixels_of_its_windows() -> None:
    rng = random.Random(2)
    for _ in range(60):
        kernel, stride = rng.randint(1, 4), rng.randint(1, 5)
        padding = rng.randint(0, kernel // 2)
        least = max(1, kernel - 2 * padding)
        sizes = {"images": rng.randint(1, 3), "height": rng.randint(least, 9), "width": rng.randint(least, 9)}
        (op,) = workload(pooling("a", **sizes, kernel=kernel, stride=stride, padding=padding)).tile_ops
        assert isinstance(op, PoolingOp)
        tile_m = rng.choice((1, 3, 16))
        read = lower(op, Tile(m=tile_m, n=16, k=32)).reads[0].box.extents[0]
        for tile, (begin, end) in enumerate(zip(read.begin.tolist(), read.end.tolist(), strict=True)):
            wanted = pixels_of(op, range(tile * tile_m, min(op.m, (tile + 1) * tile_m)))
            assert (begin, end) == (min(wanted), max(wanted) + 1) if wanted else begin == end, (op, tile)


#: Three images of 4 x 4, one tile each; a 3 x 3 filter around a tile's pixels reads no other tile.
SIZES = {"images": 3, "height": 4, "width": 4, "channels": 16, "filters": 16}


def graph_of(second: dict[str, int], read: Extent | None = None) -> BoxGraph:
    """A pair whose second op reads the pixels `read`, by default the right ones."""
    made = workload(conv("a", **SIZES), conv("b", "a", **SIZES | second))
    spaces = tile_graph(made, tiling((8, 16, 32), (8, 16, 32))).spaces
    first, reader = spaces[0], spaces[1]
    inputs, *others = reader.reads
    if read is not None:
        box = replace(inputs.box, extents=(read, *inputs.box.extents[1:]))
        reader = replace(reader, reads=(replace(inputs, box=box), *others))
    return box_graph(first, reader)


def read_by(**options: int) -> Extent:
    (op,) = workload(conv("a", **SIZES | options)).tile_ops
    assert isinstance(op, ConvOp)
    return read_pixels(op, 8)


def of_neighbours() -> Extent:
    """The neighbours if all images were stacked as one: a pixel at an edge gets neighbours from the next image."""
    return read_by(images=1, height=12)


#: By name, what tiles actually read, and what a plan assumes.
FAULTS = {
    "a row of the halo is missing": (graph_of({}), graph_of({}, read_by(kernel=1, padding=0))),
    "a wrong stride": (
        graph_of({"stride": 2, "height": 4}),
        graph_of({"stride": 2}, read_by(images=1, height=3, width=4, kernel=1, padding=0)),
    ),
    "padding of the neighbour": (graph_of({}, of_neighbours()), graph_of({})),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_plan_that_forgets_what_tiles_read_is_refused_by_proof_and_by_a_walk_over_every_state(name: str) -> None:
    true, planned = FAULTS[name]
    plan = random_plan(planned, random.Random(0), num_ctas=3, granularity=Granularity.TILE)
    prove(plan, planned)
    with pytest.raises(SafetyError, match="b tile"):
        prove(plan, true)
    whole = random_plan(true, random.Random(0), num_ctas=3, granularity=Granularity.TILE)
    prove(whole, true)
    assert not oracle.faults(whole.words.tolist(), true)
    assert oracle.faults(plan.words.tolist(), true) == {"safety"}


def test_a_tile_waits_for_the_rows_that_it_reads_alone() -> None:
    made = workload(conv("a", **SIZES), conv("b", "a", **SIZES))
    graph = tile_graph(made, tiling((16, 32, 32), (16, 32, 32)))
    (edge,) = graph.edges
    needs = edge.needs_of_tiles()
    assert [needs.tiles[needs.entries(needs.of[tile])].tolist() for tile in range(3)] == [[0], [1], [2]]


def test_the_prover_and_both_oracles_agree() -> None:
    first = [judged for judged, *_ in judged_plans(7, 60, (soak.small_graphs(),))]
    assert [one.problem for one in first if one.problem] == []
    assert {one.verdict for one in first} >= {"accepted", "safety", "coverage"}
    rows = counts(judged_cases(7, 60, (soak.SMALL,), soak.PAIRED))
    assert [sum(int(row[name]) for row in rows) for name in DISAGREEMENTS] == [0, 0, 0]
    assert sum(int(row["accepted"]) for row in rows) > 5
