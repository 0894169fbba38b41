"""Clusters of CTAs: every cluster shape, edge, option and launch mode."""

from __future__ import annotations

from tests.support.conformance.case import OTHERS, Case, Claim, cross, named
from tests.support.conformance.schedules import TICKET, wide
from tests.support.conformance.workloads import BOTH, EVERY_OPTION, RAGGED, by_options, by_rows
from tuner.core.problem.workload import Activation
from tuner.core.schedule.ordering import Granularity, RasterKind, SplitOrder, WaitPosition
from tuner.ops.gemm.pairs import ffn_pair

SHAPES = {
    "1x2, 16 rows": wide(((16, 128, 64), (16, 64, 128)), cluster=(1, 2)),
    "1x2, 64 rows, window": wide(((64, 192, 128), (64, 112, 64)), stages=5, window=2, cluster=(1, 2)),
    "1x2, 128 rows": wide(((128, 352, 64), (128, 128, 64)), cluster=(1, 2)),
    "1x2, tickets": wide(((64, 128, 64), (64, 64, 64)), assignment=TICKET, cluster=(1, 2)),
    "1x2, split": wide(((64, 192, 64), (64, 96, 64)), split_k=(2, 3), cluster=(1, 2)),
    "1x4, 16 rows": wide(((16, 256, 128), (16, 128, 256)), stages=3, input_stages=2, cluster=(1, 4)),
    "1x4, 64 rows": wide(((64, 256, 64), (64, 128, 128)), cluster=(1, 4)),
    "1x4, split, tickets": wide(((32, 256, 64), (32, 128, 64)), split_k=(3, 4), assignment=TICKET, cluster=(1, 4)),
    "2x1, 128 rows": wide(((128, 64, 64), (128, 48, 64)), raster=RasterKind.COLUMN, cluster=(2, 1)),
    "2x1, 256 rows": wide(((256, 224, 64), (256, 128, 64)), cluster=(2, 1)),
    "2x1, split, tickets": wide(((256, 112, 64), (256, 64, 64)), split_k=(1, 4), assignment=TICKET, cluster=(2, 1)),
    "1x2, waits by slice": wide(
        ((64, 64, 64), (64, 64, 64)),
        granularity=Granularity.TILE,
        wait_position=WaitPosition.SLICE,
        assignment=TICKET,
        cluster=(1, 2),
    ),
    "2x1, strided parts by slice, tickets": wide(
        ((128, 64, 64), (128, 64, 64)),
        granularity=Granularity.TILE,
        wait_position=WaitPosition.SLICE,
        split_k=(2, 3),
        split_order=SplitOrder.STRIDED,
        assignment=TICKET,
        cluster=(2, 1),
    ),
    "1x2, run-ahead 25": wide(((16, 128, 64), (16, 64, 128)), run_ahead=25, cluster=(1, 2)),
    "2x1, run-ahead 0, tickets": wide(
        ((128, 64, 64), (128, 64, 64)), run_ahead=0, split_k=(1, 3), assignment=TICKET, cluster=(2, 1)
    ),
    "4x1": wide(((64, 64, 64), (128, 32, 64)), cluster=(4, 1)),
    "2x2": wide(((128, 128, 64), (128, 64, 64)), granularity=Granularity.TILE, cluster=(2, 2)),
    "2x2, tickets": wide(((256, 256, 64), (256, 128, 64)), assignment=TICKET, cluster=(2, 2)),
}

GELU = ffn_pair(m=1, d_in=264, d_hidden=520, d_out=72, activation=Activation.GELU, bias=True)


def optioned() -> list[Case]:
    pair = by_options(EVERY_OPTION, m=150, d_in=136, d_hidden=264, d_out=72, activation=Activation.SILU)
    shapes = {}
    for cluster in ((1, 2), (2, 1), (2, 2), (1, 4)):
        rows, columns = 64 * cluster[0], 32 * cluster[1]
        for depth, split in ((64, ()), (128, (2, 2))):
            tiles = ((rows, columns, depth), (rows, 2 * columns, 64))
            name = f"{cluster[0]}x{cluster[1]}{', split' if split else ''}"
            shapes[name] = wide(tiles, split_k=split, cluster=cluster)
    return cross("cluster", "options", shapes, pair)


CASES = [
    *cross("cluster", "shapes", SHAPES, BOTH),
    *cross(
        "cluster",
        "rows",  # so few rows that some CTAs of a cluster have none, and so few columns
        named(SHAPES, "1x2, split", "1x4, split, tickets", "2x1, split, tickets", "2x2"),
        by_rows(GELU, 1, 16, 37, 64, 129),
    ),
    *optioned(),
    *cross(
        "cluster",
        "kinds",
        named(SHAPES, "1x2, 128 rows", "1x4, 64 rows", "2x1, 256 rows", "1x2, tickets"),
        {"ragged": RAGGED},
        kinds=OTHERS,
    ),
    *cross("cluster", "held", named(SHAPES, "1x2, 128 rows", "1x4, 64 rows"), {"ragged": RAGGED}, claim=Claim.CLUSTERS),
    *cross(
        "cluster",
        "first wait",
        named(SHAPES, "1x2, 128 rows", "1x2, tickets", "2x2"),
        {"ragged": RAGGED},
        claim=Claim.ABORT,
    ),
    *cross("cluster", "zip", named(SHAPES, "1x2, split", "2x2, tickets"), {"ragged": RAGGED}, claim=Claim.ARTIFACT),
    *cross("cluster", "again", named(SHAPES, "1x2, split", "2x2, tickets"), {"ragged": RAGGED}, claim=Claim.RELAUNCHES),
]
