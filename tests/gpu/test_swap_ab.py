"""Weights as operand A, on a card: every tile shape, edge, option and way of launching, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.gpu.test_wgmma import hopper
from tests.gpu.test_wgmma import schedule as plain
from tests.support.on_card import RAGGED, chain_of_three, check_relaunches, fused, problem, run, run_kind
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, ffn_pair, independent_pair
from tuner.core.schedule.ordering import Assignment, Granularity, Schedule, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Warpgroups
from tuner.workers.builder.nvrtc import Builder

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

__all__ = ["hopper"]

TICKET = Assignment.TICKET
TURNS = Warpgroups.PING_PONG


def schedule(
    tiles: tuple[tuple[int, int, int], ...],
    *,
    warps: int = 4,
    warpgroups: Warpgroups = Warpgroups.COOPERATIVE,
    **fields: Any,
) -> Schedule:
    """On few SMs, so that each CTA has several tasks."""
    shared = plain(tiles, **{"reserved_sms": 120, **fields})
    return replace(shared, tiling=replace(shared.tiling, num_warps=warps, warpgroups=warpgroups, swap_ab=True))


#: Many tasks of whole tiles.
MANY = ffn_pair(m=384, d_in=512, d_hidden=2048, d_out=1024, activation=Activation.RELU, dtype=Dtype.BF16)
CASES = {
    "8 rows": schedule(((8, 64, 64), (8, 16, 128))),
    "8 rows, deep stages, split": schedule(((8, 48, 256), (8, 32, 256)), stages=3, input_stages=4, split_k=(2, 3)),
    "24 rows, split, tickets": schedule(((24, 80, 64), (24, 112, 64)), warps=8, split_k=(3, 4), assignment=TICKET),
    "40 rows, window": schedule(((40, 128, 64), (40, 64, 128)), stages=5, window=2),
    "24 rows, lower second blocks": schedule(((24, 112, 64), (24, 176, 64))),
    "72 rows, 8 warps, lower second blocks": schedule(((72, 208, 64), (72, 240, 64)), warps=8, assignment=TICKET),
    "104 rows": schedule(((104, 128, 64), (104, 64, 64))),
    "104 rows, 8 warps, tickets": schedule(((104, 128, 64), (104, 96, 64)), warps=8, assignment=TICKET),
    "200 rows": schedule(((200, 64, 64), (200, 48, 64))),
    "200 rows, split": schedule(((200, 64, 64), (200, 48, 64)), split_k=(2, 3)),
    "200 rows, 8 warps, split": schedule(((200, 96, 64), (200, 112, 64)), warps=8, split_k=(2, 2)),
    "192 rows, 12 warps": schedule(((192, 144, 64), (192, 192, 64)), warps=12, stages=2, input_stages=2),
    "136 rows, 12 warps, split": schedule(
        ((136, 192, 64), (136, 160, 64)), warps=12, split_k=(1, 3), assignment=TICKET
    ),
    "256 rows": schedule(((256, 128, 64), (256, 128, 64)), warps=8, reserved_sms=126),
    "192 rows, 8 warps, most sums": schedule(((192, 256, 64), (192, 240, 64)), warps=8, stages=3, reserved_sms=126),
    "128 rows, most sums": schedule(((128, 192, 64), (128, 176, 64)), input_stages=4),
    "unequal rows": schedule(((128, 96, 64), (64, 256, 64)), warps=8),
    "two stages": schedule(((96, 64, 64), (96, 64, 64)), stages=2, input_stages=2),
    "waits by slice": schedule(
        ((64, 64, 64), (64, 64, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE, assignment=TICKET
    ),
    "stealing": schedule(((64, 64, 64), (96, 64, 64)), partition=4),
    "cluster 1x2, split": schedule(((64, 128, 64), (64, 96, 64)), split_k=(2, 3), cluster=(1, 2)),
    "cluster 2x1, tickets": schedule(((192, 112, 64), (192, 128, 64)), warps=8, assignment=TICKET, cluster=(2, 1)),
    "cluster 2x2": schedule(((128, 256, 64), (128, 224, 64)), warps=8, cluster=(2, 2)),
    "ping-pong": schedule(((96, 64, 64), (96, 128, 64)), warps=8, warpgroups=TURNS),
    "ping-pong, split, tickets": schedule(
        ((88, 64, 64), (88, 64, 64)), warps=8, warpgroups=TURNS, split_k=(2, 3), assignment=TICKET
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pair", [RAGGED, MANY], ids=["ragged", "many"])
def test_every_tile_shape_is_right(session: Session, builder: Builder, gpu: Gpu, case: str, pair: Any) -> None:
    run(session, builder, gpu, problem(pair), fused(CASES[case]))


@pytest.mark.parametrize("m", [1, 8, 13, 37, 64, 129, 200])
@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_number_of_rows_is_right(session: Session, builder: Builder, gpu: Gpu, m: int, dtype: Dtype) -> None:
    pair = ffn_pair(m=m, d_in=264, d_hidden=1024, d_out=520, activation=Activation.GELU, bias=True, dtype=dtype)
    for name in ("8 rows", "24 rows, split, tickets", "104 rows", "200 rows", "two stages"):
        run(session, builder, gpu, problem(pair), fused(CASES[name]))


@pytest.mark.parametrize(
    "options",
    [
        {"gated": True},
        {"bias": True, "row_scale": True},
        {"gated": True, "bias": True, "residual": True, "row_scale": True},
        {"residual": True},
    ],
    ids=lambda options: "+".join(options),
)
def test_every_option_is_right(session: Session, builder: Builder, gpu: Gpu, options: dict[str, bool]) -> None:
    pair = ffn_pair(m=150, d_in=192, d_hidden=1032, d_out=520, activation=Activation.SILU, **options)
    share = 2 if pair.ops[0].gated else 1
    for tiles, warps, split in (
        (((8, 64, 64), (8, 48, 64)), 4, ()),
        (((56, 112, 128), (56, 96, 64)), 8, (2, 2)),
        (((120, 128, 64), (120, 96, 64)), 8, ()),
        (((80, 176, 64), (80, 192, 64)), 12, ()),
    ):
        (m, n, k), second = tiles
        chosen = schedule(((m, n // share, k), second), warps=warps, split_k=split)
        run(session, builder, gpu, problem(pair), fused(chosen))


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
def test_every_plan_kind_is_right(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    names = ("104 rows", "200 rows, split", "24 rows, split, tickets", "stealing")
    run_kind(session, builder, gpu, MANY, kind, (CASES[name] for name in names))


def test_three_ops_and_an_independent_pair_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    chain = chain_of_three(300, (128, 1032, 2048, 512))
    for assigned in (Assignment.STATIC, TICKET):
        chosen = schedule(((104, 64, 64), (104, 128, 64), (152, 32, 128)), assignment=assigned, input_stages=2)
        run(session, builder, gpu, problem(chain), fused(chosen))
    both = independent_pair((256, 2048, 512), (640, 1024, 512))
    run(session, builder, gpu, problem(both), fused(schedule(((64, 64, 128), (128, 32, 128)))))


def test_relaunches_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    for name in ("200 rows, 8 warps, split", "136 rows, 12 warps, split", "ping-pong, split, tickets"):
        check_relaunches(session, builder, gpu, problem(RAGGED), fused(CASES[name]))
