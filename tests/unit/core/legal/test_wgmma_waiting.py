"""Waits of a wgmma kernel's tasks: windows ahead of waits, and reading in band."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import H200, ordering, simt, wgmma
from tests.support.chains import block
from tuner.core.legal.legality import check_schedule, tiling_problem
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.ordering import Assignment, Granularity, WaitPosition
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Epilogue, Tiling, Warpgroups
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair

FEW = ffn_pair(m=8, d_in=512, d_hidden=1024, d_out=512)
ALONE = Workload(kind=WorkloadKind.CHAIN, ops=FEW.tile_ops[:1], dtype=FEW.dtype)
PLAIN = wgmma((16, 64, 64))
WIDE = wgmma((16, 128, 64)).tiles


def test_both_are_legal_together_and_alone() -> None:
    for changes in ({"in_band": True}, {"ahead_window": 3}, {"in_band": True, "ahead_window": 1, "window": 2}):
        assert tiling_problem(FEW, H200, replace(PLAIN, **changes)) is None  # type: ignore[arg-type]
    for workload in (block(1, heads=512, width=512, hidden=512, qkv=512), FEW):
        tiling = wgmma(*((16, 64, 64),) * len(workload.tile_ops), in_band=True, cluster_k=2)
        assert tiling_problem(workload, H200, tiling) is None


@pytest.mark.parametrize(
    ("workload", "tiling", "message"),
    [
        (replace(FEW, ops=tuple(replace(op, m=9) for op in FEW.tile_ops)), {"in_band": True}, "in_band of 9 rows"),
        (
            FEW,
            {"in_band": True, "num_warps": 8, "swap_ab": True, "tiles": WIDE},
            "in_band of 8 warps that multiply: use 4 and cooperative",
        ),
        (FEW, {"in_band": True, "epilogue": Epilogue.TMA}, "in_band with epilogue tma"),
        (FEW, {"in_band": True, "cluster_n": 2}, "in_band in clusters of 1 x 2 CTAs"),
        (ALONE, {"in_band": True}, "in_band: no op reads the output of another one as A; use false"),
        (ALONE, {"ahead_window": 2}, "ahead window 2: no op reads another, so no task waits: use 0"),
        (FEW, {"ahead_window": 4}, "ahead window 4 of 4 stages: use 1 to 3, or 0 for no other limit"),
        (FEW, {"ahead_window": -1}, "ahead window -1 of 4 stages: use 1 to 3"),
        (FEW, {"ahead_window": 2, "window": 2}, "ahead window 2 of a window of 2: use 1 to 1"),
        (FEW, {"ahead_window": 1, "window": 1}, "ahead window 1 of a window of 1: use 0"),
    ],
)
def test_what_is_not_legal_is_refused_with_what_would_be(
    workload: Workload, tiling: dict[str, Any], message: str
) -> None:
    chosen = replace(PLAIN, **{"tiles": PLAIN.tiles[: len(workload.tile_ops)], **tiling})
    assert (tiling_problem(workload, H200, chosen) or "").startswith(message)


@pytest.mark.parametrize(
    ("tiling", "message"),
    [
        (
            wgmma((16, 240, 64), num_stages=2, input_stages=2),
            ("120 sums per thread spill next to warps that read in band"),
        ),
        (wgmma((16, 144, 64), split_k=(1, 2)), "72 sums per thread spill when parts are added next to warps that"),
    ],
)
def test_more_sums_than_registers_are_refused_only_in_band(tiling: Tiling, message: str) -> None:
    assert tiling_problem(FEW, H200, tiling) is None
    assert message in (tiling_problem(FEW, H200, replace(tiling, in_band=True)) or "")


@pytest.mark.parametrize(
    ("tiling", "message"),
    [
        ({"ahead_window": 1}, "ahead window 1: the simt engine has one ring"),
        ({"in_band": True}, "in_band: the simt engine has no warps"),
    ],
)
def test_other_engines_have_neither(tiling: dict[str, Any], message: str) -> None:
    assert message in (tiling_problem(FEW, H200, simt((4, 16, 256), **tiling)) or "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"granularity": Granularity.TILE, "wait_position": WaitPosition.SLICE},
            "operands that are read in band are waited for before the epilogue: use wait position task",
        ),
        ({"run_ahead": 50}, "operands that are read in band are not waited for before k-steps: use run-ahead 100"),
    ],
)
def test_there_is_no_wait_to_place_before_the_steps_of_what_is_read_in_band(
    changes: dict[str, Any], message: str
) -> None:
    schedule = Schedule.of(tiling=PLAIN, ordering=ordering(assignment=Assignment.STATIC, **changes))
    check_schedule(FEW, H200, schedule)
    with pytest.raises(IllegalSchedule, match=message):
        check_schedule(FEW, H200, schedule.but(tiling=replace(PLAIN, in_band=True)))


def test_ping_pong_leaves_no_registers_for_readers() -> None:
    turns = wgmma((64, 64, 64), num_warps=8, warpgroups=Warpgroups.PING_PONG, in_band=True)
    assert "in_band of 8 warps" in (tiling_problem(FEW, H200, turns) or "")
