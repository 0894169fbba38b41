"""Random plans of products: ragged, gated, rotated, normed, read in band and split, determined by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from tests.support.cases import adds, decoder_block, gemms, small_gpu, tiling, turned
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.ops.gemm.pairs import ffn_pair


def random_plans(seed: int, count: int) -> Iterator[tuple[TileGraph, Plan]]:
    """`count` tile graphs of two to four ops, not all of which need be in one launch, and a plan of each."""
    rng = random.Random(seed)
    for _ in range(count):
        graph = random_graph(rng)
        yield graph, make_plan(graph, _random_ordering(graph, rng), small_gpu(rng.randint(1, 12)))


def random_graph(rng: random.Random) -> TileGraph:
    """Tiles of unequal sizes, which need not divide the matrices or each other."""
    workload = _random_workload(rng)
    num_ops, depth = len(workload.tile_ops), rng.choice((16, 32, 64))
    tiles = [(rng.choice((16, 32, 48, 64)), rng.choice((16, 32, 40, 48, 64, 96))) for _ in range(num_ops)]
    most = [min(4, -(-op.k // depth)) for op in workload.tile_ops]
    split = tuple(rng.randint(1, parts) for parts in most) if rng.random() < 0.5 else ()
    chosen = tiling(*tiles, k=depth, split=split if max(split, default=1) > 1 else ())
    begin = rng.choice((0, 0, rng.randrange(num_ops)))
    end = rng.choice((num_ops, num_ops, rng.randint(begin + 1, num_ops)))
    return tile_graph(workload, replace(chosen, in_band=rng.random() < 0.25), tuple(range(begin, end)))


def _random_ordering(graph: TileGraph, rng: random.Random) -> Ordering:
    merges = [Interleave(), Interleave(kind=InterleaveKind.LONGEST_FIRST)]
    merges += [Interleave(kind=InterleaveKind.BANDS, rows=rows, lag=lag) for rows in (1, 2) for lag in (0, 1)]
    granularity = rng.choice(tuple(Granularity))
    has_width = granularity in (Granularity.CHUNK, Granularity.STRIDED, Granularity.BATCH)
    is_stream = rng.random() < 0.3
    return Ordering(
        rasters=tuple(Raster(kind=rng.choice((RasterKind.ROW, RasterKind.COLUMN))) for _ in graph.workload.tile_ops),
        interleave=rng.choice(merges),
        granularity=granularity,
        sync_width=rng.randint(2, 4) if has_width else 1,
        assignment=Assignment.STATIC if is_stream else rng.choice((Assignment.STATIC, Assignment.TICKET)),
        wait_position=rng.choice(tuple(WaitPosition)),
        split_order=SplitOrder.CONTIGUOUS if is_stream else rng.choice((SplitOrder.CONTIGUOUS, SplitOrder.STRIDED)),
        split_tiles=SplitTiles.STREAM if is_stream else rng.choice((SplitTiles.ALL, SplitTiles.TAIL)),
    )


def _random_workload(rng: random.Random) -> Workload:
    m, (one, two, three, four) = rng.randint(1, 150), (rng.randint(1, 250) for _ in range(4))
    match rng.choice(("ffn", "block", "turned", "siblings", "fork")):
        case "ffn":
            options = {name: rng.random() < 0.5 for name in ("bias", "gated", "residual", "row_scale")}
            return ffn_pair(m=m, d_in=one, d_hidden=two, d_out=three, **options)
        case "block":
            return decoder_block(m, one, two, three, heads=four)
        case "turned":
            return turned(m, one, two)
        case "siblings":
            reads_both = rng.choice(({"norm": "a"}, adds("a")))
            shape = (three, two) if "norm" in reads_both else (two, one)
            ops = (("a", "x", two, one, {}), ("b", "y", *shape, reads_both), ("c", "b", four, shape[0], {}))
            return gemms(m, *ops)
        case _:
            late = rng.choice((adds("b"), {"norm": "a"}, {}))
            shape = (three, two) if late.get("residual") else (four, two)
            return gemms(m, ("a", "x", two, one, {}), ("b", "a", three, two, {}), ("c", "a", *shape, late))
