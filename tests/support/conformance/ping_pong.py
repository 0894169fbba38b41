"""Alternating math warpgroups: every tile shape, edge, option and launch mode."""

from __future__ import annotations

from tests.support.conformance.case import OTHERS, Case, Claim, cross, named
from tests.support.conformance.schedules import ASSIGNMENTS, BY_SLICE, TICKET, in_turns
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
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.schedule.ordering import Granularity, RasterKind, WaitPosition
from tuner.ops.gemm.pairs import ffn_pair

#: Many tasks of whole tiles.
MANY = ffn_pair(m=1024, d_in=512, d_hidden=2048, d_out=1024, activation=Activation.RELU, dtype=Dtype.BF16)
SHAPES = {
    "16 rows": in_turns(((16, 64, 64), (16, 32, 128))),
    "16 rows, split, tickets": in_turns(((16, 80, 64), (16, 64, 64)), split_k=(3, 4), assignment=TICKET),
    "32 rows, deep stages": in_turns(((32, 48, 256), (32, 16, 256)), stages=3, input_stages=2),
    "64 rows": in_turns(((64, 256, 64), (64, 256, 64))),
    "64 rows, window, tickets": in_turns(((64, 112, 64), (64, 48, 64)), stages=5, window=2, assignment=TICKET),
    "64 rows, split": in_turns(((64, 112, 64), (64, 64, 64)), split_k=(2, 3)),
    "64 rows, part-major": in_turns(((64, 64, 64), (64, 64, 64)), split_k=(2, 3), part_major=True),
    "128 rows": in_turns(((128, 128, 64), (128, 128, 64))),
    "128 rows, columns, tickets": in_turns(((128, 80, 64), (128, 64, 64)), raster=RasterKind.COLUMN, assignment=TICKET),
    "128 rows, split, tickets": in_turns(((128, 128, 64), (128, 112, 64)), split_k=(1, 4), assignment=TICKET),
    "two stages": in_turns(((64, 96, 64), (64, 64, 64)), stages=2, input_stages=2),
    "unequal rows": in_turns(((128, 96, 64), (64, 64, 64))),
    "256 rows": in_turns(((256, 64, 64), (256, 56, 64)), input_stages=2),
    "waits by slice": in_turns(
        ((64, 64, 64), (64, 64, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE, assignment=TICKET
    ),
    "waits by slice, no run-ahead": in_turns(
        ((64, 48, 64), (128, 64, 64)),
        granularity=Granularity.CHUNK,
        sync_width=4,
        wait_position=WaitPosition.SLICE,
        run_ahead=0,
        split_k=(1, 2),
    ),
    "run-ahead 25, tickets": in_turns(((64, 96, 64), (64, 64, 64)), run_ahead=25, assignment=TICKET),
    "partition": in_turns(((64, 64, 64), (64, 64, 64)), partition=4, granularity=Granularity.TILE),
    "cluster 1x2, split": in_turns(((64, 192, 64), (64, 96, 64)), split_k=(2, 3), cluster=(1, 2)),
    "cluster 2x1, tickets": in_turns(((256, 112, 64), (256, 64, 64)), assignment=TICKET, cluster=(2, 1)),
}

GELU = ffn_pair(m=1, d_in=264, d_hidden=1024, d_out=520, activation=Activation.GELU, bias=True)
OPTIONED = {
    "16 rows": in_turns(((16, 64, 64), (16, 64, 64))),
    "64 rows, split": in_turns(((64, 48, 128), (64, 48, 64)), split_k=(2, 2)),
    "128 rows": in_turns(((64, 128, 64), (128, 128, 64))),
}
LAUNCHED = named(
    SHAPES,
    *("64 rows", "64 rows, split", "128 rows"),
    *("64 rows, window, tickets", "128 rows, split, tickets", "partition"),
)


def every_number_of_rows() -> dict[str, Workload]:
    return {
        f"{m}, {dtype}": workload
        for m, of_rows in by_rows(GELU, 1, 16, 37, 64, 129, 200, 300).items()
        for dtype, workload in by_dtype(of_rows).items()
    }


def aborted() -> list[Case]:
    """Either the first wait requires one post too many, or the last one before a task's last k-steps does."""
    tiles = ((64, 96, 64), (64, 64, 64))
    first = {name: in_turns(tiles, granularity=Granularity.TILE, **assigned) for name, assigned in ASSIGNMENTS.items()}
    last = {name: in_turns(tiles, **BY_SLICE, **assigned) for name, assigned in ASSIGNMENTS.items()}
    return [
        *cross("ping-pong", "first wait", first, {"many": MANY}, claim=Claim.ABORT),
        *cross("ping-pong", "last wait", last, {"many": MANY}, claim=Claim.ABORT, wait=-1),
    ]


CASES = [
    *cross("ping-pong", "shapes", SHAPES, {"ragged": RAGGED, "many": MANY}),
    *cross(
        "ping-pong",
        "rows",
        named(SHAPES, "16 rows", "64 rows, split", "128 rows", "two stages"),
        every_number_of_rows(),
    ),
    *cross(
        "ping-pong",
        "options",
        OPTIONED,
        by_options(
            GATED, EVERY_OPTION, RESIDUAL, m=150, d_in=136, d_hidden=1032, d_out=520, activation=Activation.SILU
        ),
    ),
    *cross("ping-pong", "kinds", LAUNCHED, {"many": MANY}, kinds=OTHERS),
    *cross(
        "ping-pong",
        "workloads",
        {
            name: in_turns(((64, 64, 64), (64, 128, 64), (64, 32, 128)), **assigned)
            for name, assigned in ASSIGNMENTS.items()
        },
        {"three ops": chain_of_three(300, (128, 1032, 2048, 512))},
    ),
    *cross(
        "ping-pong",
        "workloads",
        {"64 rows": in_turns(((64, 64, 128), (64, 32, 128)))},
        apart((256, 2048, 512), (640, 1024, 512)),
    ),
    *aborted(),
    *cross(
        "ping-pong",
        "again",
        named(SHAPES, "64 rows, split", "128 rows, split, tickets"),
        {"ragged": RAGGED},
        claim=Claim.RELAUNCHES,
    ),
]
