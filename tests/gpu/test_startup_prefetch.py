"""Weights brought into the L2 at the start, on a card: they change when bytes come, never a number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu import test_ping_pong, test_swap_ab
from tests.gpu.test_wgmma import hopper, schedule
from tests.support.on_card import (
    RAGGED,
    WHOLE,
    bits_of_launches,
    chain_of_three,
    check_abort,
    check_artifact,
    fused,
    problem,
    run,
    run_kind,
)
from tuner.core.legal.legality import kind_problem
from tuner.core.legal.wgmma import STARTUP_PREFETCHES
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, Workload, ffn_pair, independent_pair
from tuner.core.schedule.candidate import Candidate, PlanKind
from tuner.core.schedule.ordering import Assignment, Granularity, Schedule, SplitOrder, WaitPosition
from tuner.core.schedule.tiling import CacheHint, Epilogue
from tuner.workers.builder.nvrtc import Builder

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

__all__ = ["hopper"]

swapped, in_turns = test_swap_ab.schedule, test_ping_pong.schedule

#: Rings so short that 8 stages beyond them reach the end of some first tasks, and not of others.
CASES = {
    "16 rows": schedule(((16, 64, 64), (16, 32, 64)), stages=3),
    "16 rows, deep stages": schedule(((16, 48, 128), (16, 16, 128)), stages=2),
    "16 rows, several tasks": schedule(((16, 64, 64), (16, 32, 64)), stages=3, reserved_sms=120),
    "64 rows, readers begin, too": schedule(((64, 112, 64), (64, 64, 64)), stages=3),
    "64 rows, some held back": schedule(((64, 112, 64), (64, 64, 64)), stages=4, run_ahead=25),
    "64 rows, window": schedule(((64, 112, 64), (64, 48, 64)), stages=4, window=2),
    "64 rows, shares": schedule(((64, 64, 64), (64, 64, 64)), stages=3, assignment=Assignment.SHARES, reserved_sms=100),
    "64 rows, a first wave": schedule(
        ((64, 64, 64), (64, 64, 64)), stages=3, assignment=Assignment.FIRST_WAVE, reserved_sms=100
    ),
    "128 rows": schedule(((128, 224, 64), (128, 256, 64)), stages=3),
    "256 rows": schedule(((256, 128, 64), (256, 112, 64)), stages=2, input_stages=2),
    "split": schedule(((64, 112, 64), (64, 64, 64)), stages=2, split_k=(2, 2)),
    "strided parts": schedule(
        ((16, 80, 64), (16, 64, 64)), stages=2, split_k=(1, 2), split_order=SplitOrder.STRIDED, reserved_sms=100
    ),
    "waits by slice": schedule(
        ((64, 64, 64), (64, 64, 64)), stages=3, granularity=Granularity.TILE, wait_position=WaitPosition.SLICE
    ),
    "ping-pong": in_turns(((64, 128, 64), (64, 96, 64)), stages=3),
    "swapped": swapped(((40, 128, 64), (40, 64, 64)), stages=3),
    "swapped, 200 rows": swapped(((200, 64, 64), (200, 48, 64)), stages=3),
    "cluster 1x2": schedule(((64, 192, 64), (64, 96, 64)), stages=3, cluster=(1, 2)),
    "cluster 2x1": schedule(((128, 64, 64), (128, 48, 64)), stages=3, cluster=(2, 1)),
    "cluster 2x1, a first wave": schedule(
        ((128, 64, 64), (128, 64, 64)), stages=3, cluster=(2, 1), assignment=Assignment.FIRST_WAVE, reserved_sms=100
    ),
    "cluster 2x1, slices of lines": schedule(((128, 64, 128), (128, 48, 128)), stages=2, cluster=(2, 1)),
    "cluster 4x1, split": schedule(((64, 64, 64), (64, 32, 64)), stages=2, split_k=(1, 2), cluster=(4, 1)),
    "cluster 2x2, swapped": swapped(((128, 256, 64), (128, 224, 64)), warps=8, stages=3, cluster=(2, 2)),
    "shared k": schedule(((64, 128, 64), (64, 64, 64)), stages=2, cluster=(1, 1, 2), reserved_sms=120),
    "shared k and weights": schedule(((128, 64, 64), (128, 64, 64)), stages=2, cluster=(2, 1, 2), reserved_sms=120),
}


def prefetching(chosen: Schedule, stages: int = STARTUP_PREFETCHES[-1], **tiling: Any) -> Schedule:
    return replace(chosen, tiling=replace(chosen.tiling, startup_prefetch=stages, **tiling))


def check_bits(session: Session, builder: Builder, gpu: Gpu, workload: Workload, chosen: Schedule) -> None:
    """Every number of stages leaves the bits that none leaves, in the first launch and in the second."""
    launches = [
        launch
        for stages in STARTUP_PREFETCHES
        for launch in bits_of_launches(
            session, builder, gpu, problem(workload), fused(prefetching(chosen, stages)), count=2
        )
    ]
    for launch in launches[1:]:
        assert launch.keys() == launches[0].keys()
        assert all(np.array_equal(bits, launches[0][op]) for op, bits in launch.items())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pair", [RAGGED, WHOLE], ids=["ragged", "whole"])
def test_every_number_of_stages_is_right_and_leaves_the_same_bits(
    session: Session, builder: Builder, gpu: Gpu, case: str, pair: Workload
) -> None:
    run(session, builder, gpu, problem(pair), fused(prefetching(CASES[case])))
    check_bits(session, builder, gpu, pair, CASES[case])


@pytest.mark.parametrize(
    "chosen",
    [
        schedule(((16, 64, 64), (16, 64, 64)), stages=3),
        schedule(((64, 56, 128), (64, 64, 64)), stages=3),
        schedule(((128, 32, 64), (128, 64, 64)), stages=3, cluster=(2, 1)),
        schedule(((64, 64, 64), (64, 96, 64)), stages=2, cluster=(1, 1, 2)),
        swapped(((96, 32, 64), (96, 64, 64)), stages=3),
        swapped(((192, 32, 64), (192, 64, 64)), stages=3, cluster=(2, 1)),
    ],
    ids=lambda chosen: str(chosen.tiling),
)
@pytest.mark.parametrize("d_in", [512, 1024])
def test_gate_and_up_projection_are_both_brought(
    session: Session, builder: Builder, gpu: Gpu, chosen: Schedule, d_in: int
) -> None:
    options = {"gated": True, "bias": True, "residual": True, "row_scale": True}
    pair = ffn_pair(m=150, d_in=d_in, d_hidden=1032, d_out=520, activation=Activation.SILU, dtype=Dtype.BF16, **options)
    run(session, builder, gpu, problem(pair), fused(prefetching(chosen)))
    check_bits(session, builder, gpu, pair, chosen)


@pytest.mark.parametrize("hint", [CacheHint.NORMAL, CacheHint.EVICT_LAST])
def test_every_hint_is_right(session: Session, builder: Builder, gpu: Gpu, hint: CacheHint) -> None:
    chosen = prefetching(CASES["16 rows"], 4, weight_hint=hint)
    run(session, builder, gpu, problem(RAGGED), fused(chosen))


def test_tiles_stored_by_the_copy_engine_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    chosen = prefetching(schedule(((128, 128, 64), (128, 64, 64)), stages=2), epilogue=Epilogue.TMA)
    run(session, builder, gpu, problem(RAGGED), fused(chosen))


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
def test_every_plan_kind_is_right(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    queues = ("16 rows", "16 rows, several tasks", "128 rows", "split", "swapped", "cluster 2x1", "shared k")
    names = (*queues, "64 rows, a first wave")
    run_kind(session, builder, gpu, RAGGED, kind, (prefetching(CASES[name]) for name in names))


@pytest.mark.parametrize("kind", [PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL])
def test_a_dependent_launch_leaves_the_same_bits(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    if reason := kind_problem(WHOLE, gpu, kind):
        pytest.skip(reason)
    for name in ("16 rows", "cluster 2x1"):
        plain, *others = (
            bits_of_launches(session, builder, gpu, problem(WHOLE), Candidate(plan_kind=kind, schedule=one), count=3)
            for one in (CASES[name], prefetching(CASES[name], 2), prefetching(CASES[name]))
        )
        assert all(np.array_equal(launch[1], plain[0][1]) for launches in others for launch in launches)


def test_three_ops_and_an_independent_pair_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    tiles = ((64, 64, 64), (64, 128, 64), (64, 32, 64))
    chosen = prefetching(schedule(tiles, stages=2, reserved_sms=100))
    run(session, builder, gpu, problem(chain_of_three(300, (1024, 264, 512, 72))), fused(chosen))
    both = independent_pair((64, 512, 1024), (64, 128, 2048))
    run(session, builder, gpu, problem(both), fused(prefetching(schedule(((64, 64, 64), (64, 64, 128)), stages=3))))


@pytest.mark.parametrize("case", ["16 rows", "64 rows, readers begin, too", "cluster 2x1"])
def test_an_aborted_launch_leaves_nan_or_what_is_right(session: Session, builder: Builder, gpu: Gpu, case: str) -> None:
    check_abort(session, builder, gpu, problem(RAGGED), prefetching(CASES[case]))


def test_an_artifact_runs_from_its_zip_alone(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    check_artifact(builder, gpu, problem(RAGGED), fused(prefetching(CASES["cluster 2x1"])), tmp_path)
