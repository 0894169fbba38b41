"""Weights as operand A: every tile shape, edge, option and launch mode."""

from __future__ import annotations

from tests.support.conformance.case import OTHERS, Case, Claim, cross, named
from tests.support.conformance.schedules import ASSIGNMENTS, TICKET, swapped
from tests.support.conformance.workloads import (
    EVERY_OPTION,
    GATED,
    RAGGED,
    RESIDUAL,
    SCALED,
    apart,
    by_dtype,
    by_options,
    by_rows,
    chain_of_three,
)
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.schedule.ordering import Granularity, WaitPosition
from tuner.core.schedule.tiling import Warpgroups
from tuner.ops.gemm.pairs import ffn_pair

TURNS = Warpgroups.PING_PONG
#: Many tasks of whole tiles.
MANY = ffn_pair(m=384, d_in=512, d_hidden=2048, d_out=1024, activation=Activation.RELU, dtype=Dtype.BF16)
SHAPES = {
    "8 rows": swapped(((8, 64, 64), (8, 16, 128))),
    "8 rows, deep stages, split": swapped(((8, 48, 256), (8, 32, 256)), stages=3, input_stages=4, split_k=(2, 3)),
    "24 rows, split, tickets": swapped(((24, 80, 64), (24, 112, 64)), warps=8, split_k=(3, 4), assignment=TICKET),
    "40 rows, window": swapped(((40, 128, 64), (40, 64, 128)), stages=5, window=2),
    "24 rows, lower second blocks": swapped(((24, 112, 64), (24, 176, 64))),
    "72 rows, 8 warps, lower second blocks": swapped(((72, 208, 64), (72, 240, 64)), warps=8, assignment=TICKET),
    "104 rows": swapped(((104, 128, 64), (104, 64, 64))),
    "104 rows, 8 warps, tickets": swapped(((104, 128, 64), (104, 96, 64)), warps=8, assignment=TICKET),
    "200 rows": swapped(((200, 64, 64), (200, 48, 64))),
    "200 rows, split": swapped(((200, 64, 64), (200, 48, 64)), split_k=(2, 3)),
    "200 rows, 8 warps, split": swapped(((200, 96, 64), (200, 112, 64)), warps=8, split_k=(2, 2)),
    "192 rows, 12 warps": swapped(((192, 144, 64), (192, 192, 64)), warps=12, stages=2, input_stages=2),
    "136 rows, 12 warps, split": swapped(((136, 192, 64), (136, 160, 64)), warps=12, split_k=(1, 3), assignment=TICKET),
    "256 rows": swapped(((256, 128, 64), (256, 128, 64)), warps=8, reserved_sms=126),
    "192 rows, 8 warps, most sums": swapped(((192, 256, 64), (192, 240, 64)), warps=8, stages=3, reserved_sms=126),
    "128 rows, most sums": swapped(((128, 192, 64), (128, 176, 64)), input_stages=4),
    "unequal rows": swapped(((128, 96, 64), (64, 256, 64)), warps=8),
    "two stages": swapped(((96, 64, 64), (96, 64, 64)), stages=2, input_stages=2),
    "waits by slice": swapped(
        ((64, 64, 64), (64, 64, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE, assignment=TICKET
    ),
    "partition": swapped(((64, 64, 64), (96, 64, 64)), partition=4),
    "cluster 1x2, split": swapped(((64, 128, 64), (64, 96, 64)), split_k=(2, 3), cluster=(1, 2)),
    "cluster 2x1, tickets": swapped(((192, 112, 64), (192, 128, 64)), warps=8, assignment=TICKET, cluster=(2, 1)),
    "cluster 2x2": swapped(((128, 256, 64), (128, 224, 64)), warps=8, cluster=(2, 2)),
    "ping-pong": swapped(((96, 64, 64), (96, 128, 64)), warps=8, warpgroups=TURNS),
    "ping-pong, split, tickets": swapped(
        ((88, 64, 64), (88, 64, 64)), warps=8, warpgroups=TURNS, split_k=(2, 3), assignment=TICKET
    ),
}

GELU = ffn_pair(m=1, d_in=264, d_hidden=1024, d_out=520, activation=Activation.GELU, bias=True)


def every_number_of_rows() -> dict[str, Workload]:
    return {
        f"{m}, {dtype}": workload
        for m, of_rows in by_rows(GELU, 1, 8, 13, 37, 64, 129, 200).items()
        for dtype, workload in by_dtype(of_rows).items()
    }


def optioned() -> list[Case]:
    """A gated first op has half of the columns: the other half of its tile is the gate's."""
    pairs = by_options(
        GATED, SCALED, EVERY_OPTION, RESIDUAL, m=150, d_in=192, d_hidden=1032, d_out=520, activation=Activation.SILU
    )
    cases: list[Case] = []
    for name, pair in pairs.items():
        share = 2 if pair.tile_ops[0].gated else 1
        shapes = {
            "8 rows": swapped(((8, 64 // share, 64), (8, 48, 64))),
            "56 rows, split": swapped(((56, 112 // share, 128), (56, 96, 64)), warps=8, split_k=(2, 2)),
            "120 rows": swapped(((120, 128 // share, 64), (120, 96, 64)), warps=8),
            "80 rows": swapped(((80, 176 // share, 64), (80, 192, 64)), warps=12),
        }
        cases += cross("swap-ab", "options", shapes, {name: pair})
    return cases


CASES = [
    *cross("swap-ab", "shapes", SHAPES, {"ragged": RAGGED, "many": MANY}),
    *cross(
        "swap-ab",
        "rows",
        named(SHAPES, "8 rows", "24 rows, split, tickets", "104 rows", "200 rows", "two stages"),
        every_number_of_rows(),
    ),
    *optioned(),
    *cross(
        "swap-ab",
        "kinds",
        named(SHAPES, "104 rows", "200 rows, split", "24 rows, split, tickets", "partition"),
        {"many": MANY},
        kinds=OTHERS,
    ),
    *cross(
        "swap-ab",
        "workloads",
        {
            name: swapped(((104, 64, 64), (104, 128, 64), (152, 32, 128)), input_stages=2, **assigned)
            for name, assigned in ASSIGNMENTS.items()
        },
        {"three ops": chain_of_three(300, (128, 1032, 2048, 512))},
    ),
    *cross(
        "swap-ab",
        "workloads",
        {"64 and 128 rows": swapped(((64, 64, 128), (128, 32, 128)))},
        apart((256, 2048, 512), (640, 1024, 512)),
    ),
    *cross(
        "swap-ab",
        "again",
        named(SHAPES, "200 rows, 8 warps, split", "136 rows, 12 warps, split", "ping-pong, split, tickets"),
        {"ragged": RAGGED},
        claim=Claim.RELAUNCHES,
    ),
]
