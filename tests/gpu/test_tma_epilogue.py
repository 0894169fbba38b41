"""Tiles stored by the copy engine, on a card: every tile shape, edge, option and way of launching, against float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu import test_ping_pong, test_wgmma
from tests.gpu.test_wgmma import hopper
from tests.support.on_card import (
    RAGGED,
    WHOLE,
    bits_of_launches,
    chain_of_three,
    check_abort,
    check_artifact,
    check_relaunches,
    fused,
    problem,
    run,
    run_kind,
)
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, Workload, ffn_pair, independent_pair
from tuner.core.schedule.ordering import Assignment, Granularity, RasterKind, Schedule, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import CacheHint, Epilogue
from tuner.workers.builder.nvrtc import Builder

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

__all__ = ["hopper"]

TICKET = Assignment.TICKET


def schedule(tiles: tuple[tuple[int, int, int], ...], *, ping_pong: bool = False, **fields: Any) -> Schedule:
    plain = (test_ping_pong if ping_pong else test_wgmma).schedule(tiles, **fields)
    return replace(plain, tiling=replace(plain.tiling, epilogue=Epilogue.TMA))


CASES = {
    "16 rows": schedule(((16, 64, 64), (16, 64, 128))),
    "16 rows, narrow readers": schedule(((16, 128, 64), (16, 32, 128))),
    "32 rows, tickets": schedule(((32, 112, 64), (32, 96, 64)), assignment=TICKET),
    "48 rows": schedule(((48, 64, 64), (48, 136, 64))),
    "64 rows, four chunks": schedule(((64, 256, 64), (64, 256, 64)), stages=3, input_stages=2),
    "64 rows, split": schedule(((64, 112, 64), (64, 64, 64)), split_k=(2, 3)),
    "16 rows, split, tickets": schedule(((16, 80, 64), (16, 64, 64)), split_k=(3, 4), assignment=TICKET),
    "80 and 112 rows, split": schedule(((80, 96, 64), (112, 64, 64)), split_k=(2, 3), granularity=Granularity.TILE),
    "128 rows": schedule(((128, 224, 64), (128, 256, 64)), stages=3, input_stages=3),
    "128 rows, columns": schedule(((128, 80, 64), (128, 64, 64)), raster=RasterKind.COLUMN),
    "128 rows, split": schedule(((128, 176, 64), (128, 128, 64)), split_k=(1, 4), assignment=TICKET),
    "128 rows, slices": schedule(
        ((128, 96, 64), (128, 128, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE, run_ahead=0
    ),
    "144 and 176 rows, tickets": schedule(
        ((144, 128, 64), (176, 192, 64)), stages=3, input_stages=3, assignment=TICKET
    ),
    "256 rows": schedule(((256, 128, 64), (256, 112, 64)), input_stages=2),
    "unequal rows of two groups": schedule(((256, 96, 64), (128, 64, 64)), input_stages=2),
    "stealing by both": schedule(((16, 64, 64), (16, 64, 64)), partition=6, granularity=Granularity.TILE),
    "cluster 1x2": schedule(((128, 352, 64), (128, 128, 64)), cluster=(1, 2)),
    "cluster 2x1, tickets": schedule(((256, 112, 64), (256, 64, 64)), assignment=TICKET, cluster=(2, 1)),
    "cluster 2x2, split": schedule(((128, 256, 64), (128, 192, 64)), split_k=(1, 3), cluster=(2, 2)),
    "in turns, 64 rows": schedule(((64, 256, 64), (64, 256, 64)), stages=3, input_stages=2, ping_pong=True),
    "in turns, 128 rows, tickets": schedule(((128, 80, 64), (128, 128, 64)), assignment=TICKET, ping_pong=True),
    "in turns, split": schedule(((64, 112, 64), (64, 64, 64)), split_k=(2, 3), ping_pong=True),
    "in turns, slices": schedule(
        ((64, 64, 64), (64, 64, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE, ping_pong=True
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pair", [RAGGED, WHOLE], ids=["ragged", "whole"])
def test_every_tile_shape_is_right(session: Session, builder: Builder, gpu: Gpu, case: str, pair: Workload) -> None:
    run(session, builder, gpu, problem(pair), fused(CASES[case]))


@pytest.mark.parametrize("case", [name for name in CASES if "stealing" not in name])
@pytest.mark.parametrize("dtype", list(Dtype))
def test_the_copy_engine_stores_the_bits_that_the_threads_store(
    session: Session, builder: Builder, gpu: Gpu, case: str, dtype: Dtype
) -> None:
    options = {"bias": True, "residual": True, "row_scale": True}
    pair = ffn_pair(m=150, d_in=136, d_hidden=520, d_out=328, activation=Activation.GELU, dtype=dtype, **options)
    chosen = CASES[case]
    direct = replace(chosen, tiling=replace(chosen.tiling, epilogue=Epilogue.DIRECT))
    by_copies, by_threads = (
        bits_of_launches(session, builder, gpu, problem(pair), fused(one))[0] for one in (chosen, direct)
    )
    assert by_copies.keys() == by_threads.keys() == {0, 1}
    for op, bits in by_copies.items():
        assert np.array_equal(bits, by_threads[op])


@pytest.mark.parametrize("m", [1, 16, 37, 64, 129, 193])
def test_every_number_of_rows_is_right(session: Session, builder: Builder, gpu: Gpu, m: int) -> None:
    pair = ffn_pair(m=m, d_in=264, d_hidden=520, d_out=72, activation=Activation.GELU, bias=True)
    turns = schedule(((64, 64, 64), (64, 64, 64)), ping_pong=True, reserved_sms=128)
    names = ("16 rows", "64 rows, split", "80 and 112 rows, split", "128 rows", "256 rows")
    for chosen in (turns, *(CASES[name] for name in names)):
        run(session, builder, gpu, problem(pair), fused(chosen))


def test_a_matrix_narrower_than_a_chunk_is_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    for m, width in ((1, 8), (37, 24), (16, 56)):
        pair = ffn_pair(m=m, d_in=8, d_hidden=width, d_out=width)
        run(session, builder, gpu, problem(pair), fused(CASES["16 rows"]))


@pytest.mark.parametrize(
    "options",
    [{"gated": True}, {"gated": True, "bias": True, "residual": True, "row_scale": True}, {"residual": True}],
    ids=lambda options: "+".join(options),
)
@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_option_is_right(
    session: Session, builder: Builder, gpu: Gpu, options: dict[str, bool], dtype: Dtype
) -> None:
    pair = ffn_pair(m=50, d_in=136, d_hidden=264, d_out=72, activation=Activation.SILU, dtype=dtype, **options)
    for tiles, fields in (
        (((16, 64, 64), (16, 64, 64)), {}),
        (((64, 64, 128), (64, 72, 64)), {"split_k": (2, 2)}),
        (((128, 128, 64), (128, 64, 64)), {}),
        (((64, 128, 64), (128, 96, 64)), {"ping_pong": True, "reserved_sms": 130}),
    ):
        run(session, builder, gpu, problem(pair), fused(schedule(tiles, **fields)))


@pytest.mark.parametrize("hint", [CacheHint.NORMAL, CacheHint.EVICT_LAST])
def test_every_hint_is_right(session: Session, builder: Builder, gpu: Gpu, hint: CacheHint) -> None:
    chosen = CASES["128 rows"]
    hinted = replace(chosen, tiling=replace(chosen.tiling, intermediate_hint=hint))
    run(session, builder, gpu, problem(RAGGED), fused(hinted))


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
def test_every_plan_kind_is_right(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    names = ["16 rows", "64 rows, split", "128 rows", "in turns, split"]
    names += ["32 rows, tickets", "stealing by both", "cluster 2x1, tickets"]
    run_kind(session, builder, gpu, RAGGED, kind, (CASES[name] for name in names))


def test_three_ops_and_an_independent_pair_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    chain = chain_of_three(300, (128, 264, 512, 72))
    for turns in (False, True):
        chosen = schedule(((64, 64, 64), (64, 128, 64), (64, 32, 128)), ping_pong=turns, assignment=TICKET)
        run(session, builder, gpu, problem(chain), fused(chosen))
    both = independent_pair((64, 512, 512), (64, 128, 512))
    run(session, builder, gpu, problem(both), fused(schedule(((64, 64, 128), (64, 64, 128)))))


@pytest.mark.parametrize("assigned", [{"assignment": Assignment.STATIC}, {"assignment": TICKET}], ids=str)
def test_an_aborted_launch_leaves_nan_or_what_is_right(
    session: Session, builder: Builder, gpu: Gpu, assigned: dict[str, Any]
) -> None:
    chosen = schedule(((64, 96, 64), (64, 64, 64)), granularity=Granularity.TILE, **assigned)
    check_abort(session, builder, gpu, problem(RAGGED), chosen)


def test_an_artifact_runs_from_its_zip_alone(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    pair = ffn_pair(m=50, d_in=136, d_hidden=264, d_out=72, activation=Activation.SILU, gated=True)
    for name in ("64 rows, split", "32 rows, tickets"):
        check_artifact(builder, gpu, problem(pair), fused(CASES[name]), tmp_path)


@pytest.mark.parametrize("name", ["64 rows, split", "128 rows, split", "in turns, split"])
def test_relaunches_give_the_same_bits(session: Session, builder: Builder, gpu: Gpu, name: str) -> None:
    check_relaunches(session, builder, gpu, problem(RAGGED), fused(CASES[name]))
