"""Which weight requests of two SMs are merged, depending on the order, the launch and the tiles; compared with
measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import H200
from tests.support.conformance.schedules import TICKET, wide
from tests.support.repository import ROOT
from tuner.core.model.caches.merging import TOGETHER_SHARE, merged_shares
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.ordering import RasterKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.stats import median
from tuner.ops.gemm.pairs import ffn_pair
from tuner.winners import ShippedWinners

PAIR = ffn_pair(m=96, d_in=512, d_hidden=2048, d_out=2048)
TILES = ((48, 64, 64), (48, 64, 64))
COLUMNS = wide(TILES, raster=RasterKind.COLUMN)


def shares(schedule: Schedule, workload: Workload = PAIR, *, is_apart: bool = False) -> dict[int, float]:
    (plan,) = plans_for(workload, H200, fused(schedule))
    return dict(merged_shares(plan.plan, schedule.tiling, is_apart=is_apart))


@pytest.mark.parametrize("assignment", [COLUMNS.ordering.assignment, TICKET])
def test_tiles_one_below_the_other_are_a_pair_where_the_walk_goes_downwards(assignment: Any) -> None:
    chosen = COLUMNS.but(ordering=replace(COLUMNS.ordering, assignment=assignment))
    assert shares(chosen) == {0: 1.0, 1: 1.0}
    row = wide(TILES, raster=RasterKind.ROW)
    assert shares(row.but(ordering=replace(row.ordering, assignment=assignment))) == {}


def test_in_a_programmatic_launch_few_lie_together_unless_they_are_placed_so() -> None:
    assert shares(COLUMNS, is_apart=True) == {0: TOGETHER_SHARE, 1: TOGETHER_SHARE}
    placed = COLUMNS.but(tiling=replace(COLUMNS.tiling, neighbours=2))
    assert shares(placed, is_apart=True) == {0: 1.0, 1: 1.0}


def test_tiles_of_all_rows_and_clusters_of_the_kernels_own_have_no_neighbours() -> None:
    assert shares(wide(((96, 64, 64), (96, 64, 64)))) == {}
    assert (
        shares(wide(((96, 64, 64), (96, 64, 64)), cluster=(2, 1)), ffn_pair(m=192, d_in=512, d_hidden=2048, d_out=512))
        == {}
    )


#: The rows whose neighbours were placed together on an H200, by name.
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "h200" / "neighbours.json").read_text())["rows"]


KINDS = [kind for kind in PlanKind if kind.is_ours]


# In CI, test_forecast.py ranks measured schedules.
@pytest.mark.soak
def test_forecasts_of_low_tiles_are_near_what_was_measured_in_each_way_to_launch_them() -> None:
    workloads = {one.source.removeprefix("shipped "): one.workload for one in ShippedWinners().of("h200")}
    schedules = {
        f"shipped {one.source.removeprefix('shipped ')} {one.candidate.schedule}": one.candidate.schedule
        for one in ShippedWinners().of("h200")
    }
    ratios = dict[str, list[float]]()
    for row in MEASURED:
        schedule = schedules.get(f"shipped {row['row']} {row['schedule']}")
        if row["way"] not in KINDS or schedule is None or schedule.tiling.tiles[0].m > 64:
            continue
        asked = Candidate(plan_kind=PlanKind(row["way"]), schedule=schedule)
        ratios.setdefault(row["way"], []).append(forecast_us(workloads[row["row"]], H200, asked) / row["us"])
    assert {"fused", "fused_pdl", "two_launches", "two_launches_pdl"} <= ratios.keys()
    for way, found in ratios.items():
        assert 0.95 < median(found) < 1.05, way
        assert min(found) > 0.9, way
        assert max(found) < 1.1, way
