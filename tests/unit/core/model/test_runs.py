from __future__ import annotations

from collections import Counter

import pytest

from tests.support.cases import H200, ordering, wgmma
from tests.support.presets import decoder_block
from tuner.core.model.forecast import forecast_us
from tuner.core.model.runs import ranked_ways, ways_to_launch
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule


def test_the_ways_to_launch_a_chain_are_all_its_divisions_into_runs() -> None:
    ways = list(ways_to_launch(4))
    assert Counter(kind for kind, _ in ways) == {PlanKind.FUSED_PDL: 1, PlanKind.RUNS: 6, PlanKind.N_LAUNCHES_PDL: 1}
    assert len(set(ways)) == len(ways) == 8
    assert ways[:3] == [(PlanKind.FUSED_PDL, ()), (PlanKind.RUNS, (1,)), (PlanKind.RUNS, (2,))]


def test_each_way_is_ranked_by_its_own_forecast() -> None:
    """Small ops are split along k, so that every SM has weights to stream."""
    block = decoder_block("llama3-70b", m=16, tp=8, has_reduce=False)
    tiles = wgmma(*[(16, 64, 128), (16, 56, 128), (16, 64, 128), (16, 40, 256)], num_stages=6, split_k=(1, 2, 1, 4))
    schedule = Schedule.of(tiling=tiles, ordering=ordering(4, assignment=Assignment.STATIC))
    ranked = ranked_ways(block, H200, schedule)
    assert len(ranked) == 8
    assert [us for us, _ in ranked] == sorted(us for us, _ in ranked)
    for us, candidate in (ranked[0], ranked[-1]):
        assert us == pytest.approx(forecast_us(block, H200, candidate))
    assert ranked_ways(block, CATALOGUE["h200"], schedule) == ranked
