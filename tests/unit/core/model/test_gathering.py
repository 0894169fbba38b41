"""Ops that gather their inputs: their requests to the L2, and the cost of these."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.conv.forecasts import DEFAULT_ROWS, SPEARMAN_BAR
from benchmarks.conv.rows import rows
from benchmarks.conv.search import workload_of
from tests.support.cases import H200
from tests.support.repository import ROOT
from tuner.core.insight.forecast_quality import judge_forecasts
from tuner.core.model.caches.merging import merged_shares
from tuner.core.model.forecast import forecast_us
from tuner.core.model.rates import rates_of
from tuner.core.model.task_costs import costs_of
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.ordering import Raster, RasterKind
from tuner.ops.conv.asked import ConvPair, Filters
from tuner.ops.conv.costs import library_us

CHANNELS, IMAGES, SIDE = 256, 4, 14
_3X3 = Filters(filters=CHANNELS, kernel=3, stride=1)
PAIR = ConvPair(images=IMAGES, height=SIDE, width=SIDE, channels=CHANNELS, first=_3X3, second=_3X3).to_workload()
ORDER = "row+row producer_first row-sync static 1/SM"
ROWS = {row.name: row for row in rows()}
LOW = read_line(f"wgmma 64x32x256+64x32x256 s4 i4 w4 | {ORDER}")


def test_a_tile_requests_its_rows_once_for_each_place_of_a_filter_and_the_memory_is_read_once() -> None:
    first = costs_of(tile_graph(PAIR, LOW.tiling), H200, rates_of(H200))[0].whole
    assert first.a_bytes[0] == 64 * 9 * CHANNELS * 2
    assert sum(size for panels in first.a_panels for _, size in panels) == IMAGES * SIDE**2 * CHANNELS * 2


def test_neighbours_along_a_row_of_tiles_request_the_same_images_together() -> None:
    columns = (Raster(kind=RasterKind.COLUMN),) * 2
    down = LOW.but(ordering=replace(LOW.ordering, rasters=columns))
    for schedule, of_inputs in ((LOW, True), (down, False)):
        (plan,) = plans_for(PAIR, H200, fused(schedule))
        shares = [merged_shares(plan.plan, LOW.tiling, is_apart=False, of_inputs=way) for way in (True, False)]
        assert shares == ([{0: 1.0, 1: 1.0}, {}] if of_inputs else [{}, {0: 1.0, 1: 1.0}])


def test_the_tile_that_requests_most_is_the_slowest_as_it_was_on_an_h200() -> None:
    """On an H200, they took 32.2 us and 16.0 us (conv_forecasts.json in its results)."""
    flat = read_line(f"wgmma 256x16x64+256x16x64 s6 i6 w8 cluster1x1x2 | {ORDER}")
    assert forecast_us(PAIR, H200, fused(flat)) > 1.4 * forecast_us(PAIR, H200, fused(LOW))


@pytest.mark.parametrize(
    ("images", "side", "channels", "first", "second", "measured_us"),
    [
        (1, 56, 64, (64, 3), (64, 3), 11.9),
        (16, 56, 64, (64, 3), (64, 3), 32.5),
        (32, 56, 64, (64, 3), (64, 3), 49.2),
        (32, 56, 256, (64, 1), (64, 3), 45.3),
        (1, 7, 512, (512, 3), (512, 3), 26.1),
        (16, 14, 1024, (256, 1), (256, 3), 18.0),
        (16, 28, 512, (512, 3), (512, 3), 180.3),
    ],
)
def test_the_librarys_time_is_about_that_of_an_h200(
    images: int, side: int, channels: int, first: tuple[int, int], second: tuple[int, int], measured_us: float
) -> None:
    """Measured on an H200: the fastest time of each pair in conv_library.json of its results."""
    layers = {
        name: Filters(filters=count, kernel=kernel, stride=1)
        for name, (count, kernel) in {"first": first, "second": second}.items()
    }
    pair = ConvPair(images=images, height=side, width=side, channels=channels, **layers).to_workload()
    assert library_us(pair.ops, pair, H200) == pytest.approx(measured_us, rel=0.12)


def test_ctas_draw_a_second_task_after_all_have_a_first_one() -> None:
    """On an H200, it took 18.6 us (conv_forecasts.json). If the first CTA drew three short tasks at once, it would take
    80 us by the forecast."""
    workload = workload_of(ROWS["r50-s2-3x3-1x1/b1"])
    drawn = read_line("wgmma 200x96x64+200x80x64 s6 i6 window5 w8 swap-ab | row+row bands1 row-sync ticket 1/SM")
    assert forecast_us(workload, H200, fused(drawn)) < 35


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFAULT_ROWS)
def test_forecasts_rank_the_schedules_that_an_h200_measured(name: str) -> None:
    lines = json.loads((ROOT / "benchmarks/results/h200/conv_forecasts.json").read_text())["schedules"]
    timed = [line for line in lines if line["row"] == name and "us" in line]
    workload = workload_of(ROWS[name])
    forecasts = [forecast_us(workload, H200, fused(read_line(line["schedule"]))) for line in timed]
    found = judge_forecasts(zip(forecasts, (line["us"] for line in timed), strict=True))
    assert len(timed) > 70
    assert found.rank_correlation is not None
    assert found.rank_correlation > SPEARMAN_BAR
