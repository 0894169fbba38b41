"""CTAs of a cluster that split a tile's K: every split, edge, option and launch mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.conformance.case import OTHERS, Case, Claim, cross, named
from tests.support.conformance.schedules import (
    ASSIGNMENTS,
    BY_SLICE,
    FEW_CTAS,
    FOUR_SHARE_K,
    TICKET,
    TWO_SHARE_K,
    Tiles,
    swapped,
)
from tests.support.conformance.schedules import wide as plain
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
from tuner.core.problem.workload import Activation, Dtype
from tuner.core.schedule.ordering import Assignment, Granularity, RasterKind, WaitPosition
from tuner.core.schedule.schedule import Schedule
from tuner.ops.gemm.pairs import ffn_pair

#: With tiles of depth 64, some CTAs have one more k-step than others.
WHOLE = ffn_pair(m=256, d_in=512, d_hidden=1088, d_out=512, activation=Activation.RELU, dtype=Dtype.BF16)
TWO, FOUR = TWO_SHARE_K, FOUR_SHARE_K


def wide(tiles: Tiles, **fields: Any) -> Schedule:
    """Few SMs, so that each cluster has several tasks."""
    return plain(tiles, **{**FEW_CTAS, **fields})


def roomy(schedule: Schedule, kib: int) -> Schedule:
    """A tiling with the given space for sums."""
    return schedule.but(tiling=replace(schedule.tiling, sum_kib=kib))


SHAPES = {
    "2, 16 rows": wide(((16, 128, 64), (16, 64, 128)), cluster=TWO),
    "2, 16 rows, deep stages": wide(((16, 64, 256), (16, 32, 512)), stages=3, input_stages=2, cluster=TWO),
    "2, 48 rows, shares of unequal size": wide(((48, 72, 64), (48, 24, 64)), cluster=TWO),
    "2, 64 rows, window": wide(((64, 176, 128), (64, 112, 64)), stages=3, window=2, cluster=TWO),
    "2, 128 rows": wide(((128, 176, 64), (128, 256, 64)), stages=3, input_stages=2, cluster=TWO),
    "2, 112 rows, tickets": wide(((112, 128, 64), (112, 64, 64)), assignment=TICKET, cluster=TWO),
    "2, 192 rows": wide(((192, 128, 64), (192, 96, 64)), stages=2, input_stages=2, cluster=TWO),
    "2, 192 rows, odd exchanges, tickets": wide(
        ((192, 160, 64), (192, 96, 64)), stages=2, input_stages=2, assignment=TICKET, cluster=TWO
    ),
    "2, 256 rows, tickets": wide(
        ((256, 64, 64), (256, 128, 64)), stages=2, input_stages=2, assignment=TICKET, cluster=TWO
    ),
    "2, 128 rows, room for all sums": roomy(
        wide(((128, 176, 64), (128, 256, 64)), stages=3, input_stages=2, cluster=TWO), 64
    ),
    "2, 192 rows, more room, tickets": roomy(
        wide(((192, 160, 64), (192, 96, 64)), stages=2, input_stages=2, assignment=TICKET, cluster=TWO), 48
    ),
    "2, swapped, 256 rows, more room": roomy(
        swapped(((256, 96, 64), (256, 128, 64)), warps=8, stages=3, cluster=TWO), 32
    ),
    "4, 128 rows, more room": roomy(wide(((128, 200, 64), (128, 176, 64)), stages=3, input_stages=2, cluster=FOUR), 48),
    "4, 16 rows": wide(((16, 256, 64), (16, 128, 128)), stages=3, input_stages=2, cluster=FOUR),
    "4, 64 rows, shares of unequal size": wide(((64, 88, 64), (64, 200, 64)), cluster=FOUR),
    "4, 64 rows, tickets": wide(((64, 128, 64), (64, 64, 64)), assignment=TICKET, cluster=FOUR),
    "4, 128 rows": wide(((128, 64, 64), (128, 96, 64)), raster=RasterKind.COLUMN, cluster=FOUR),
    "2, an exchange of one vector": wide(((64, 16, 64), (64, 48, 64)), cluster=TWO),
    "4, 128 rows, shares with fewer vectors than exchanges": wide(
        ((128, 200, 64), (128, 176, 64)), stages=3, input_stages=2, cluster=FOUR
    ),
    "4, 128 rows, odd exchanges, tickets": wide(
        ((128, 160, 64), (128, 96, 64)), stages=3, input_stages=2, assignment=TICKET, cluster=FOUR
    ),
    "1x2 and 2": wide(((64, 192, 64), (64, 128, 64)), cluster=(1, 2, 2)),
    "2x1 and 2, tickets": wide(((256, 112, 64), (256, 64, 64)), assignment=TICKET, cluster=(2, 1, 2)),
    "2, unequal rows": wide(((64, 96, 64), (16, 32, 64)), granularity=Granularity.TILE, cluster=TWO),
    "2, each task alone": wide(((16, 128, 64), (16, 64, 64)), reserved_sms=0, cluster=TWO),
    "2, swapped, 200 rows": swapped(((200, 64, 64), (200, 48, 64)), cluster=TWO),
    "2, swapped, lower second blocks, tickets": swapped(((24, 112, 64), (24, 176, 64)), assignment=TICKET, cluster=TWO),
    "2, swapped, 256 rows": swapped(((256, 96, 64), (256, 128, 64)), warps=8, stages=3, cluster=TWO),
    "4, swapped, 136 rows": swapped(((136, 144, 64), (136, 160, 64)), warps=12, stages=2, input_stages=2, cluster=FOUR),
    "4, swapped, 104 rows, tickets": swapped(((104, 64, 64), (104, 64, 64)), assignment=TICKET, cluster=FOUR),
    "2x1 and 2, swapped": swapped(((128, 64, 64), (128, 64, 64)), cluster=(2, 1, 2)),
    "2, shares": wide(((64, 64, 64), (64, 64, 64)), assignment=Assignment.SHARES, cluster=TWO),
    "2, partition": wide(((64, 64, 64), (64, 64, 64)), partition=5, cluster=TWO),
    "2, run-ahead 25": wide(((16, 128, 64), (16, 64, 128)), run_ahead=25, cluster=TWO),
    "4, run-ahead 0, tickets": wide(((64, 64, 64), (64, 64, 64)), run_ahead=0, assignment=TICKET, cluster=FOUR),
    **{
        f"{sharers[2]}, waits by slice of {name}": wide(
            tiles, wait_position=WaitPosition.SLICE, cluster=sharers, **more
        )
        for sharers in (TWO, FOUR)
        for name, tiles, more in (
            ("16 rows", ((16, 64, 64), (16, 32, 64)), {"granularity": Granularity.TILE}),
            (
                "64 rows, tickets",
                ((64, 48, 64), (64, 64, 64)),
                {"granularity": Granularity.TILE, "assignment": TICKET},
            ),
            (
                "tall readers, no run-ahead",
                ((96, 96, 64), (128, 112, 64)),
                {"granularity": Granularity.CHUNK, "sync_width": 2, "run_ahead": 0, "input_stages": 2},
            ),
        )
    },
}

GELU = ffn_pair(m=1, d_in=264, d_hidden=520, d_out=72, activation=Activation.GELU, bias=True)
OPTIONS = ({}, {"bias": True}, RESIDUAL, {"row_scale": True}, GATED, EVERY_OPTION)


def rows() -> dict[str, Schedule]:
    """Few tasks, on all SMs."""
    alone = named(SHAPES, "2, 192 rows", "4, 128 rows, shares with fewer vectors than exchanges")
    return {
        **named(SHAPES, "2, 16 rows", "2, 112 rows, tickets", "4, 64 rows, tickets", "1x2 and 2", "2x1 and 2, swapped"),
        **{name: one.but(ordering=replace(one.ordering, reserved_sms=0)) for name, one in alone.items()},
    }


def optioned() -> list[Case]:
    shapes = {}
    for cluster in (TWO, FOUR, (1, 2, 2), (2, 1, 2)):
        height, columns = 64 * cluster[0], 64 * cluster[1]
        for name, tiles in (
            ("low", ((height, columns, 64), (height, 2 * columns, 64))),
            ("tall", ((2 * height, columns, 64), (2 * height, columns, 64))),
        ):
            for how, build in (("plain", wide), ("swapped", swapped)):
                which = "x".join(map(str, cluster))
                shapes[f"{which}, {name}, {how}"] = build(tiles, stages=3, input_stages=2, cluster=cluster)
    pairs = by_options(*OPTIONS, m=150, d_in=256, d_hidden=520, d_out=200, activation=Activation.SILU)
    return [
        case
        for name, pair in pairs.items()
        for dtype, workload in by_dtype(pair).items()
        for case in cross("shared-k", "options", shapes, {f"{name}, {dtype}": workload})
    ]


def workloads() -> list[Case]:
    chain = {"three ops": chain_of_three(100, (256, 264, 512, 64))}
    both = apart((64, 512, 512), (64, 128, 512))
    sharers = {"2": TWO, "4": FOUR}
    three = {n: wide(((64, 64, 64), (16, 128, 64), (64, 32, 128)), cluster=one) for n, one in sharers.items()}
    two = {n: wide(((64, 64, 128), (64, 32, 128)), cluster=one) for n, one in sharers.items()}
    return [*cross("shared-k", "workloads", three, chain), *cross("shared-k", "workloads", two, both)]


def aborted() -> list[Case]:
    """Either the first wait requires one post too many, or the last one before a task's last k-steps does, so that a
    single CTA aborts before it multiplies the awaited inputs."""
    first, last = {}, {}
    tiles = ((64, 96, 64), (64, 64, 64))
    for name, assigned in ASSIGNMENTS.items():
        for sharers in (TWO, FOUR):
            shape = f"{sharers[2]}, {name}"
            first[shape] = wide(tiles, granularity=Granularity.TILE, cluster=sharers, **assigned)
            last[shape] = wide(tiles, cluster=sharers, **BY_SLICE, **assigned)
    return [
        *cross("shared-k", "first wait", first, {"ragged": RAGGED}, claim=Claim.ABORT),
        *cross("shared-k", "last wait", last, {"ragged": RAGGED}, claim=Claim.ABORT, wait=-1),
    ]


CASES = [
    *cross("shared-k", "shapes", SHAPES, {"ragged": RAGGED, "whole": WHOLE}),
    *cross("shared-k", "rows", rows(), by_rows(GELU, 1, 16, 37, 64, 129, 193)),
    *cross(
        "shared-k",
        "a k-step for each",
        {"4, 48 rows": wide(((48, 32, 64), (48, 40, 64)), cluster=FOUR)},
        {"40x200x248x40": ffn_pair(m=40, d_in=200, d_hidden=248, d_out=40)},
    ),
    *optioned(),
    *cross(
        "shared-k",
        "kinds",
        named(SHAPES, "2, 128 rows", "4, 16 rows", "1x2 and 2", "4, 64 rows, tickets", "2, partition"),
        {"ragged": RAGGED},
        kinds=OTHERS,
    ),
    *workloads(),
    *aborted(),
    *cross(
        "shared-k",
        "zip",
        named(SHAPES, "2, 128 rows", "1x2 and 2", "4, 64 rows, tickets"),
        {"ragged": RAGGED},
        claim=Claim.ARTIFACT,
    ),
    *cross(
        "shared-k",
        "again",
        named(
            SHAPES,
            *("2, 112 rows, tickets", "4, 16 rows", "4, 64 rows, tickets", "2, partition"),
            *("4, 128 rows, odd exchanges, tickets", "2, swapped, 256 rows", "2, 192 rows, odd exchanges, tickets"),
        ),
        {"ragged": RAGGED},
        claim=Claim.RELAUNCHES,
    ),
]
