"""The simulator against measured schedules of an H200, with rates fitted without the evaluated pair."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from benchmarks.simulator.judge import (
    DRAM_BAR,
    MIN_ORDERS,
    SPEARMAN_BAR,
    chosen,
    data_file,
    earlier_fits,
    judge,
    spearman_in_tilings,
    summary,
    table,
)
from benchmarks.simulator.trials import DataSet, pack, read, write
from tests.support.lanes import soak_unless
from tests.support.ranked_attentions import measured, ranked
from tests.support.repository import ROOT
from tuner.core.model.fit import MOST, Forecast, Linear, from_vector, improve, names, to_vector
from tuner.core.model.rates import CATALOGUE_RATES, Rates
from tuner.core.problem.gpu import CATALOGUE

H200 = CATALOGUE["h200"]
RESULTS = ROOT / "benchmarks" / "results" / "h200" / "simulator.json"
ROWS: dict[str, dict[str, Any]] = {row["pair"]: row for row in json.loads(RESULTS.read_text())["rows"]}
PAIRS = [pair for pair in ROWS if pair != "all"]


@pytest.fixture(scope="module")
def data() -> DataSet:
    return read(data_file("h200"))


def test_every_pair_was_measured_and_judged(data: DataSet) -> None:
    assert data.pairs == PAIRS
    assert len(PAIRS) >= 8
    for pair in PAIRS:
        assert ROWS[pair]["schedules"] == len(data.of(pair)) >= 150
        assert ROWS[pair]["counted"] >= 40
        assert ROWS[pair]["tilings_compared"] >= 3


def test_the_summary_is_that_of_the_rows() -> None:
    assert summary([ROWS[pair] for pair in PAIRS]) == ROWS["all"]


def test_what_is_judged_again_is_what_was_fitted_to_the_schedules_that_it_says(data: DataSet, tmp_path: Path) -> None:
    rates, per_pair = earlier_fits(RESULTS)
    assert list(rates) == data.pairs
    assert f"of {per_pair} schedules per pair" in (ROOT / "docs" / "simulator.md").read_text()
    other = {"rows": [ROWS["all"], ROWS[PAIRS[0]]], "meta": {"fitted_per_pair": 7}}
    (tmp_path / "simulator.json").write_text(json.dumps(other))
    assert earlier_fits(tmp_path / "simulator.json") == ({PAIRS[0]: rates[PAIRS[0]]}, 7)


# In CI, tests/unit/core/model/test_own_fit.py leaves out what a fit is evaluated by.
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pair", soak_unless(lambda _, pair: pair == "decode-swiglu/llama3-70b-tp8/m16", PAIRS))
def test_a_pair_that_the_fit_was_not_shown_is_predicted_as_well_as_its_row_says(pair: str, data: DataSet) -> None:
    row = ROWS[pair]
    again = judge(data, pair, Rates.from_json(row["rates"]), H200)
    for figure in ("spearman", "spearman_in_tiling", "regret_top10", "dram_error_median"):
        assert again[figure] == pytest.approx(row[figure], abs=0.02), figure


def test_the_page_shows_the_rows() -> None:
    page = ROOT / "docs" / "simulator.md"
    assert table([ROWS[pair] for pair in PAIRS]) in page.read_text()
    assert f"{len(names())} numbers" in page.read_text()


def test_the_targets_that_are_met_stay_met() -> None:
    rows = [ROWS[pair] for pair in PAIRS]
    assert median(row["spearman"] for row in rows) >= SPEARMAN_BAR
    assert median(row["dram_error_median"] for row in rows) <= DRAM_BAR


def test_within_a_tiling_only_orders_that_differ_by_more_than_the_noise_are_compared() -> None:
    def rows(tiling: str, times: list[float]) -> list[dict[str, Any]]:
        return [{"schedule": {"tiling": tiling}, "time_us": time} for time in times]

    spread = [float(time) for time in range(10, 10 + MIN_ORDERS)]
    flat = [10.0 + 0.01 * i for i in range(MIN_ORDERS)]
    few = spread[:-1]
    data = [*rows("a", spread), *rows("b", flat), *rows("c", few)]
    found = [Forecast(time_us=row["time_us"], dram_bytes=1) for row in data]
    assert spearman_in_tilings(data, found, noise=0.01) == [pytest.approx(1.0)]


def test_lines_become_rows_relative_to_the_library_of_their_rounds(tmp_path: Path) -> None:
    lines = [
        {"kind": "meta", "gpu": "x"},
        *(
            {"kind": "time", "pair": "p", "digest": d, "stratum": "s", "schedule": {"tiling": d}, "spread": 0.0, **row}
            for d, row in (
                ("a", {"ratio": 2.0, "library_us": 10.0, "time_us": 20.0}),
                ("b", {"ratio": 3.0, "library_us": 12.0, "time_us": 36.0}),  # the clock was lower
                ("c", {"ratio": 1.0, "library_us": 10.0, "time_us": 10.0}),
                ("d", {"reason": "spills"}),
            )
        ),
        {"kind": "again", "pair": "p", "digest": "b", "ratio": 3.3, "library_us": 10.0},
        {"kind": "count", "pair": "p", "digest": "a", "counters": {"dram__bytes_read.sum": 5.0}, "reason": ""},
    ]
    data = pack(lines)
    assert [row["time_us"] for row in data.rows] == [20.0, 30.0, 10.0]
    assert data.noise("p") == pytest.approx(0.1)
    assert [row.get("counters") for row in data.rows] == [{"dram__bytes_read.sum": 5.0}, None, None]
    write(tmp_path / "data", data)
    assert read(tmp_path / "data") == data


def test_a_fit_is_shown_some_of_each_pair_most_of_them_fast(data: DataSet) -> None:
    rows = chosen(data, 30)
    assert rows == chosen(data, 30)
    for pair in data.pairs:
        times = sorted(row["time_us"] for row in data.of(pair))
        shown = [row["time_us"] for row in rows if row["pair"] == pair]
        assert len(shown) == 30
        assert sum(time <= times[len(times) // 2] for time in shown) >= 20


def test_rates_are_a_vector_and_some_have_a_most() -> None:
    vector = to_vector(CATALOGUE_RATES)
    assert len(vector) == len(names())
    back = from_vector(vector)
    assert to_vector(back) == pytest.approx(vector)
    highest = from_vector(vector + 5.0)
    assert (highest.dram_share, highest.l2_share, highest.launch_us) == (MOST["dram_share"], 1.0, MOST["launch_us"])


def test_a_step_of_the_fit_solves_a_linear_problem_and_sees_only_what_is_used() -> None:
    """Residuals are 1 - rate 0 for the used trials; the other trials would change the solution."""
    size = len(names())
    start = np.full(size, -3.0)
    slopes = np.zeros((8, size))
    slopes[:4, 0] = -1.0
    values = np.array([0.1, 0.1, 9.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    linear = Linear(at=start, residuals=values, slopes=slopes)
    moved = improve(linear, start, np.array([True, True, False, False]))
    assert moved[0] == pytest.approx(-2.9, abs=0.01)
    assert np.abs(moved[1:] + 3.0).max() < 1e-9


def test_a_step_solves_again_for_the_rest_where_a_rate_reaches_its_most() -> None:
    """Two rates explain the same times; one may rise by only 0.01, so the other one explains the rest."""
    share, time = names().index("dram_share"), names().index("post_us")
    start = to_vector(CATALOGUE_RATES)
    start[share] = np.log(MOST["dram_share"]) - 0.01
    slopes = np.zeros((8, len(start)))
    slopes[:4, [share, time]] = (-1.0, -1.0)
    linear = Linear(at=start, residuals=np.array([0.1] * 4 + [0.0] * 4), slopes=slopes)
    moved = improve(linear, start, np.ones(4, dtype=bool)) - start
    assert moved[share] == pytest.approx(0.01)
    assert moved[time] == pytest.approx(0.09, abs=0.002)


def test_schedules_of_attentions_are_ranked_as_they_were_measured() -> None:
    """If a task cost as much as a product's task, and a tile of pages took no time, the rank correlations would be
    0.964, 0.614, 0.595 and 0.514."""
    gpu, rows = measured("h200")
    wanted = {"llama3-8b/16/512": 0.95, "llama3-70b-tp8/16/512": 0.8, "llama3-70b-tp8/16/2048": 0.85}
    wanted["llama3-8b/16/1-4096/pages16"] = 0.8
    found = {one.row: one for one in ranked(gpu, [row for row in rows if row["row"] in wanted])}
    assert {row: one.spearman for row, one in found.items() if one.spearman < wanted[row]} == {}
    assert [len(one.measured_us) for one in found.values()] == [22, 16, 31, 33]
