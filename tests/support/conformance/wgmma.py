"""The warp-specialised engine: every tile shape, edge, option and launch mode."""

from __future__ import annotations

from tests.support.conformance.case import OTHERS, SIGNALLING, Case, Claim, cross, named
from tests.support.conformance.schedules import ASSIGNMENTS, BY_SLICE, TICKET, wide
from tests.support.conformance.workloads import (
    EVERY_OPTION,
    GATED,
    RAGGED,
    RESIDUAL,
    apart,
    by_dtype,
    by_options,
    by_rows,
    chain_of_three,
)
from tuner.core.problem.workload import Activation
from tuner.core.schedule.ordering import Granularity, RasterKind, SplitOrder, WaitPosition
from tuner.ops.gemm.pairs import ffn_pair

SHAPES = {
    "16 rows": wide(((16, 64, 64), (16, 32, 128))),
    "16 rows, deep stages": wide(((16, 48, 256), (16, 16, 512)), stages=3, input_stages=2),
    "32 rows, tickets": wide(((32, 112, 64), (32, 96, 64)), assignment=TICKET),
    "64 rows, window": wide(((64, 112, 128), (64, 48, 64)), stages=5, window=2),
    "64 rows, split": wide(((64, 112, 64), (64, 64, 64)), split_k=(2, 3)),
    "64 rows, part-major": wide(((64, 64, 64), (64, 64, 64)), split_k=(2, 3), part_major=True),
    "16 rows, split, tickets": wide(((16, 80, 64), (16, 64, 64)), split_k=(3, 4), assignment=TICKET),
    "32 rows, split": wide(((32, 80, 64), (32, 64, 64)), split_k=(1, 8), granularity=Granularity.TILE),
    "128 rows": wide(((128, 224, 64), (128, 256, 64))),
    "128 rows, columns": wide(((128, 80, 64), (128, 64, 64)), raster=RasterKind.COLUMN),
    "128 rows, split": wide(((128, 176, 64), (128, 128, 64)), split_k=(1, 4), assignment=TICKET),
    "48 rows": wide(((48, 64, 64), (48, 32, 128))),
    "80 and 112 rows, split": wide(((80, 96, 64), (112, 64, 64)), split_k=(2, 3), granularity=Granularity.TILE),
    "two CTAs of 96 rows": wide(((192, 64, 64), (192, 64, 64)), split_k=(1, 2), cluster=(2, 1)),
    "144 and 176 rows, tickets": wide(((144, 128, 64), (176, 192, 64)), assignment=TICKET),
    "192 rows": wide(((192, 192, 64), (192, 176, 64)), stages=3, input_stages=3),
    "192 rows, split": wide(((192, 136, 64), (192, 96, 64)), split_k=(2, 4), assignment=TICKET),
    "192 rows, slices": wide(
        ((192, 64, 64), (192, 64, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE
    ),
    "256 rows": wide(((256, 128, 64), (256, 112, 64)), input_stages=2),
    "256 rows, most sums": wide(((256, 192, 64), (256, 184, 64)), input_stages=4),
    "two CTAs of 256 rows": wide(((512, 176, 64), (512, 192, 64)), stages=3, cluster=(2, 1)),
    "64 rows, joint rings, split": wide(((64, 112, 64), (64, 64, 64)), input_stages=4, split_k=(2, 3)),
    "128 rows, joint rings, tickets": wide(((128, 96, 64), (128, 128, 64)), input_stages=4, assignment=TICKET),
    "48 rows, joint rings, slices": wide(
        ((48, 48, 64), (48, 64, 64)),
        input_stages=4,
        granularity=Granularity.TILE,
        wait_position=WaitPosition.SLICE,
        run_ahead=0,
    ),
    **{
        f"waits by slice of {name}": wide(tiles, wait_position=WaitPosition.SLICE, **more)
        for name, tiles, more in (
            ("16 rows", ((16, 64, 64), (16, 32, 64)), {"granularity": Granularity.TILE}),
            ("16 rows, chunks", ((16, 48, 128), (16, 16, 64)), {"granularity": Granularity.CHUNK, "sync_width": 4}),
            (
                "64 rows, parts",
                ((64, 48, 64), (64, 64, 64)),
                {"granularity": Granularity.TILE, "split_k": (1, 2), "assignment": TICKET},
            ),
            (
                "tall readers, no run-ahead",
                ((128, 96, 64), (256, 112, 64)),
                {"granularity": Granularity.CHUNK, "sync_width": 2, "run_ahead": 0, "input_stages": 2},
            ),
        )
    },
    "16 rows, strided parts": wide(((16, 80, 64), (16, 64, 64)), split_k=(3, 4), split_order=SplitOrder.STRIDED),
    **{
        f"strided parts by slice, {name}": wide(
            tiles, split_order=SplitOrder.STRIDED, wait_position=WaitPosition.SLICE, **more
        )
        for name, tiles, more in (
            ("16 rows", ((16, 48, 64), (16, 64, 64)), {"granularity": Granularity.TILE, "split_k": (1, 3)}),
            (
                "64 rows, window, tickets",
                ((64, 48, 64), (64, 64, 64)),
                {
                    "granularity": Granularity.CHUNK,
                    "sync_width": 4,
                    "split_k": (2, 4),
                    "window": 2,
                    "assignment": TICKET,
                },
            ),
            (
                "128 rows, no run-ahead",
                ((128, 96, 64), (128, 128, 64)),
                {"granularity": Granularity.TILE, "split_k": (1, 4), "run_ahead": 0},
            ),
        )
    },
    **{f"run-ahead {n}": wide(((16, 64, 64), (16, 32, 128)), run_ahead=n) for n in (0, 25, 50)},
    "run-ahead 0, tickets": wide(((64, 96, 64), (64, 64, 64)), run_ahead=0, split_k=(1, 4), assignment=TICKET),
    "unequal rows": wide(((64, 96, 64), (16, 32, 64))),
    "16 rows, partition": wide(((16, 64, 64), (16, 32, 64)), partition=4, granularity=Granularity.TILE),
    "unequal rows of two groups": wide(((256, 96, 64), (128, 64, 64)), input_stages=2),
}

GELU = ffn_pair(m=1, d_in=264, d_hidden=512, d_out=136, activation=Activation.GELU, bias=True)
SMALL = {"m": 50, "d_in": 136, "d_hidden": 264, "d_out": 72, "activation": Activation.SILU}
OPTIONED = {
    "16 rows": wide(((16, 64, 64), (16, 64, 64))),
    "64 rows, split": wide(((64, 64, 128), (64, 48, 64)), split_k=(2, 2)),
    "128 rows": wide(((128, 128, 64), (128, 64, 64))),
}
LAUNCHED = named(SHAPES, "16 rows", "64 rows, split", "128 rows", "32 rows, tickets", "16 rows, partition")


def aborted() -> list[Case]:
    """Either the first wait requires one post too many, or the last one before a task's last k-steps does."""
    tiles = ((64, 96, 64), (64, 64, 64))
    first = {name: wide(tiles, granularity=Granularity.TILE, **assigned) for name, assigned in ASSIGNMENTS.items()}
    last = {name: wide(tiles, **BY_SLICE, **assigned) for name, assigned in ASSIGNMENTS.items()}
    return [
        *cross("wgmma", "first wait", first, {"ragged": RAGGED}, claim=Claim.ABORT),
        *cross("wgmma", "last wait", last, {"ragged": RAGGED}, claim=Claim.ABORT, wait=-1),
    ]


CASES = [
    *cross("wgmma", "shapes", SHAPES, by_dtype(RAGGED)),
    *cross(
        "wgmma",
        "rows",
        named(SHAPES, "16 rows", "64 rows, split", "80 and 112 rows, split", "128 rows", "192 rows, split"),
        by_rows(GELU, 1, 16, 37, 64, 129, 193),
    ),
    *cross(
        "wgmma",
        "smallest",
        {"16 rows": wide(((16, 16, 64), (16, 16, 64)))},
        {"1x8x8x8": ffn_pair(m=1, d_in=8, d_hidden=8, d_out=8)},
    ),
    *cross("wgmma", "options", OPTIONED, by_options(GATED, EVERY_OPTION, RESIDUAL, **SMALL)),
    *cross("wgmma", "kinds", LAUNCHED, {"ragged": RAGGED}, kinds=OTHERS),
    *cross("wgmma", "kinds", named(SHAPES, "waits by slice of 16 rows"), {"ragged": RAGGED}, kinds=SIGNALLING),
    *cross(
        "wgmma",
        "workloads",
        {"64 rows": wide(((64, 64, 64), (64, 128, 64), (64, 32, 128)))},
        {"three ops": chain_of_three(100, (128, 264, 512, 64))},
    ),
    *cross(
        "wgmma", "workloads", {"64 rows": wide(((64, 64, 128), (64, 32, 128)))}, apart((64, 512, 512), (64, 128, 512))
    ),
    *aborted(),
    *cross(
        "wgmma",
        "zip",
        named(SHAPES, "64 rows, split", "32 rows, tickets"),
        by_options(GATED, **SMALL),
        claim=Claim.ARTIFACT,
    ),
    *cross("wgmma", "again", named(SHAPES, "64 rows, split"), {"ragged": RAGGED}, claim=Claim.RELAUNCHES),
]
