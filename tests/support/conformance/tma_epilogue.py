"""Tiles stored by the copy engine: every tile shape, edge, option and launch mode."""

from __future__ import annotations

from dataclasses import replace

from tests.support.conformance.case import OTHERS, Case, Claim, cross, named
from tests.support.conformance.schedules import ASSIGNMENTS, TICKET, by_copies
from tests.support.conformance.workloads import (
    BOTH,
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
from tests.support.on_card import fused
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.ordering import Granularity, RasterKind, WaitPosition
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Epilogue
from tuner.ops.gemm.pairs import ffn_pair

SHAPES = {
    "16 rows": by_copies(((16, 64, 64), (16, 64, 128))),
    "16 rows, narrow readers": by_copies(((16, 128, 64), (16, 32, 128))),
    "32 rows, tickets": by_copies(((32, 112, 64), (32, 96, 64)), assignment=TICKET),
    "48 rows": by_copies(((48, 64, 64), (48, 136, 64))),
    "64 rows, four chunks": by_copies(((64, 256, 64), (64, 256, 64)), stages=3, input_stages=2),
    "64 rows, split": by_copies(((64, 112, 64), (64, 64, 64)), split_k=(2, 3)),
    "16 rows, split, tickets": by_copies(((16, 80, 64), (16, 64, 64)), split_k=(3, 4), assignment=TICKET),
    "80 and 112 rows, split": by_copies(((80, 96, 64), (112, 64, 64)), split_k=(2, 3), granularity=Granularity.TILE),
    "128 rows": by_copies(((128, 224, 64), (128, 256, 64)), stages=3, input_stages=3),
    "128 rows, columns": by_copies(((128, 80, 64), (128, 64, 64)), raster=RasterKind.COLUMN),
    "128 rows, split": by_copies(((128, 176, 64), (128, 128, 64)), split_k=(1, 4), assignment=TICKET),
    "128 rows, slices": by_copies(
        ((128, 96, 64), (128, 128, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE, run_ahead=0
    ),
    "144 and 176 rows, tickets": by_copies(
        ((144, 128, 64), (176, 192, 64)), stages=3, input_stages=3, assignment=TICKET
    ),
    "256 rows": by_copies(((256, 128, 64), (256, 112, 64)), input_stages=2),
    "unequal rows of two groups": by_copies(((256, 96, 64), (128, 64, 64)), input_stages=2),
    "partition": by_copies(((16, 64, 64), (16, 64, 64)), partition=5, granularity=Granularity.TILE),
    "cluster 1x2": by_copies(((128, 352, 64), (128, 128, 64)), cluster=(1, 2)),
    "cluster 2x1, tickets": by_copies(((256, 112, 64), (256, 64, 64)), assignment=TICKET, cluster=(2, 1)),
    "cluster 2x2, split": by_copies(((128, 256, 64), (128, 192, 64)), split_k=(1, 3), cluster=(2, 2)),
    "in turns, 64 rows": by_copies(((64, 256, 64), (64, 256, 64)), stages=3, input_stages=2, ping_pong=True),
    "in turns, 128 rows, tickets": by_copies(((128, 80, 64), (128, 128, 64)), assignment=TICKET, ping_pong=True),
    "in turns, split": by_copies(((64, 112, 64), (64, 64, 64)), split_k=(2, 3), ping_pong=True),
    "in turns, slices": by_copies(
        ((64, 64, 64), (64, 64, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE, ping_pong=True
    ),
}

GELU = ffn_pair(m=1, d_in=264, d_hidden=520, d_out=72, activation=Activation.GELU, bias=True)
SMALL = {"m": 50, "d_in": 136, "d_hidden": 264, "d_out": 72, "activation": Activation.SILU}
ROWS = {
    "in turns": by_copies(((64, 64, 64), (64, 64, 64)), ping_pong=True, reserved_sms=128),
    **named(SHAPES, "16 rows", "64 rows, split", "80 and 112 rows, split", "128 rows", "256 rows"),
}
OPTIONED = {
    "16 rows": by_copies(((16, 64, 64), (16, 64, 64))),
    "64 rows, split": by_copies(((64, 64, 128), (64, 72, 64)), split_k=(2, 2)),
    "128 rows": by_copies(((128, 128, 64), (128, 64, 64))),
    "in turns": by_copies(((64, 128, 64), (128, 96, 64)), ping_pong=True, reserved_sms=130),
}
LAUNCHED = named(
    SHAPES,
    *("16 rows", "64 rows, split", "128 rows", "in turns, split"),
    *("32 rows, tickets", "partition", "cluster 2x1, tickets"),
)
NARROW = {
    f"{m}x{width}": ffn_pair(m=m, d_in=8, d_hidden=width, d_out=width) for m, width in ((1, 8), (37, 24), (16, 56))
}
THREE = ((64, 64, 64), (64, 128, 64), (64, 32, 128))


def optioned() -> dict[str, Workload]:
    return {
        f"{name}, {dtype}": workload
        for name, pair in by_options(GATED, EVERY_OPTION, RESIDUAL, **SMALL).items()
        for dtype, workload in by_dtype(pair).items()
    }


def hinted() -> dict[str, Schedule]:
    return {
        str(hint): SHAPES["128 rows"].but(tiling=replace(SHAPES["128 rows"].tiling, intermediate_hint=hint))
        for hint in (CacheHint.NORMAL, CacheHint.EVICT_LAST)
    }


def stored_by_threads() -> list[Case]:
    """Every shape gives the same bits as with stores by threads."""
    options = {"bias": True, "residual": True, "row_scale": True}
    pair = ffn_pair(m=150, d_in=136, d_hidden=520, d_out=328, activation=Activation.GELU, **options)
    return [
        replace(case, others=(fused(shape.but(tiling=replace(shape.tiling, epilogue=Epilogue.DIRECT))),))
        for name, shape in SHAPES.items()
        for case in cross(
            "tma", "stored by threads", {name: shape}, by_dtype(pair), claim=Claim.SAME_BITS, num_launches=1
        )
    ]


CASES = [
    *cross("tma", "shapes", SHAPES, BOTH),
    *stored_by_threads(),
    *cross("tma", "rows", ROWS, by_rows(GELU, 1, 16, 37, 64, 129, 193)),
    *cross("tma", "narrower than a chunk", named(SHAPES, "16 rows"), NARROW),
    *cross("tma", "options", OPTIONED, optioned()),
    *cross("tma", "hints", hinted(), {"ragged": RAGGED}),
    *cross("tma", "kinds", LAUNCHED, {"ragged": RAGGED}, kinds=OTHERS),
    *cross(
        "tma",
        "workloads",
        {
            "in turns" if turns else "cooperative": by_copies(THREE, ping_pong=turns, assignment=TICKET)
            for turns in (False, True)
        },
        {"three ops": chain_of_three(300, (128, 264, 512, 72))},
    ),
    *cross(
        "tma",
        "workloads",
        {"64 rows": by_copies(((64, 64, 128), (64, 64, 128)))},
        apart((64, 512, 512), (64, 128, 512)),
    ),
    *cross(
        "tma",
        "first wait",
        {
            name: by_copies(((64, 96, 64), (64, 64, 64)), granularity=Granularity.TILE, **assigned)
            for name, assigned in ASSIGNMENTS.items()
        },
        {"ragged": RAGGED},
        claim=Claim.ABORT,
    ),
    *cross(
        "tma",
        "zip",
        named(SHAPES, "64 rows, split", "32 rows, tickets"),
        by_options(GATED, **SMALL),
        claim=Claim.ARTIFACT,
    ),
    *cross(
        "tma",
        "again",
        named(SHAPES, "64 rows, split", "128 rows, split", "in turns, split"),
        {"ragged": RAGGED},
        claim=Claim.RELAUNCHES,
    ),
]
