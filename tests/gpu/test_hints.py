"""Cache hints on a card: they change where lines lie, never a number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.on_card import fused, problem, run, schedule
from tuner.core.legal.legality import engine_problem, tiling_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Workload, ffn_pair
from tuner.core.schedule.candidate import Candidate, PlanKind
from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Tile, Tiling
from tuner.workers.builder.nvrtc import Builder

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

#: Copies of 16 bytes, and of 2 with an odd column behind the last pair.
PAIRS = [
    ffn_pair(m=200, d_in=520, d_hidden=1000, d_out=264, activation=Activation.RELU),
    ffn_pair(m=50, d_in=77, d_hidden=131, d_out=65, activation=Activation.SILU),
]
TILINGS = [
    schedule(((64, 64, 64), (64, 32, 64))),
    Schedule(
        tiling=Tiling(
            engine=Engine.WGMMA,
            tiles=(Tile(m=64, n=96, k=64), Tile(m=64, n=48, k=128)),
            num_stages=4,
            num_warps=4,
            input_stages=3,
        ),
        ordering=schedule(((64, 96, 64), (64, 48, 128))).ordering,
    ),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.describe())
@pytest.mark.parametrize("chosen", TILINGS, ids=lambda chosen: str(chosen.tiling.engine))
def test_every_hint_leaves_the_numbers_right(
    session: Session, builder: Builder, gpu: Gpu, chosen: Schedule, pair: Workload
) -> None:
    if reason := engine_problem(pair, gpu, chosen.tiling.engine):
        pytest.skip(reason)
    asked = [
        replace(chosen.tiling, weight_hint=weights, intermediate_hint=intermediate)
        for weights in CacheHint
        for intermediate in CacheHint
    ]
    legal = [tiling for tiling in asked if tiling_problem(pair, gpu, tiling) is None]
    assert len(legal) >= 6
    for tiling in legal:
        one = replace(chosen, tiling=tiling)
        run(session, builder, gpu, problem(pair), fused(one))
        run(session, builder, gpu, problem(pair), Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=one))
