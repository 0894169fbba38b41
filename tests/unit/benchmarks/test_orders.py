"""The effect of order alone, on the simulated GPU: the compared orderings, the contents of a row, and continued
runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.report import machine_of
from benchmarks.common.workbench import Workbench
from benchmarks.orders.cases import CASES, NUM_ORDERINGS, Case, orderings_of, row_major, tilings_of
from benchmarks.orders.measure import NAMED, Results, Rounds, count_rows, measure_case, measure_cases, name_of
from tests.support.lanes import soak_unless
from tests.support.spaces import space_of
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.core.space.space import Space

H200 = CATALOGUE["h200"]
SMALL = [case for case in CASES if case.name in ("llama3-8b/wgmma/m64", "llama3-8b/mma/m64")]


@pytest.fixture(scope="module")
def row(bench: Workbench) -> dict[str, Any]:
    return measure_case(bench, SMALL[0], Rounds(tilings=4, orderings=6, named=40))


def results(bench: Workbench, path: Path) -> Results:
    return Results(path, machine_of(bench.evaluator.environment()))


def test_the_plain_pair_is_compared_at_all_its_rows_and_every_name_is_one_case() -> None:
    plain = [case.m for case in CASES if case.pair == "llama3-8b" and case.engine is Engine.WGMMA]
    assert plain == [64, 128, 256, 512, 1024, 2048, 4096]
    assert len({case.name for case in CASES}) == len(CASES)


# In CI, tests/unit/core/space/test_space.py has it of a small pair.
@pytest.mark.soak
@pytest.mark.parametrize(
    "case",
    soak_unless(lambda _, case: case.name == "llama3-8b-swiglu/wgmma/m512", CASES),
    ids=lambda case: case.name,
)
def test_every_tiling_of_a_case_has_legal_orderings_of_which_no_two_are_the_same_plan(case: Case) -> None:
    space = space_of(case.workload, H200)
    tilings = tilings_of(case, space)
    assert len(tilings) >= 2
    assert {tiling.engine for tiling in tilings} == {case.engine}
    for tiling in tilings:
        orderings = orderings_of(space, tiling)
        assert orderings[0] == row_major(tiling)
        assert 10 <= len(orderings) <= NUM_ORDERINGS
        assert all(space.is_legal(schedule) and schedule.tiling == tiling for schedule in orderings)
    graph = tile_graph(case.workload, tiling)
    plans = {make_plan(graph, schedule.ordering, H200).words.tobytes() for schedule in orderings}
    assert len(plans) == len(orderings)


# In CI, the next test has a row.
@pytest.mark.soak
def test_a_row_says_what_order_is_worth_beside_what_noise_is(row: dict[str, Any]) -> None:
    assert name_of(row) == SMALL[0].name
    times_us = [one["us"] for one in row["orderings"]]
    assert times_us == sorted(times_us)
    assert len(times_us) == row["num_orderings"] == len({one["ordering"] for one in row["orderings"]})
    assert row["best"]["ordering"] == row["orderings"][0]["ordering"]
    assert row["worst"]["ordering"] == row["orderings"][-1]["ordering"]
    assert row["worst_over_best"] == pytest.approx(row["worst"]["us"] / row["best"]["us"], rel=0.01)
    assert row["row_major_over_best"] == pytest.approx(row["row_major"]["us"] / row["best"]["us"], rel=0.01)
    assert row["worst_over_best"] > 1.05  # the shares leave CTAs of the simulated card without work
    assert row["row_major_over_itself"] == pytest.approx(1, abs=0.02)
    assert min(row["tilings"], key=row["tilings"].__getitem__) == row["tiling"]


@pytest.mark.slow
def test_the_three_that_are_compared_share_their_tiling_and_can_be_read_back(row: dict[str, Any]) -> None:
    schedules = [Schedule.from_json(row[name]["schedule"]) for name in NAMED]
    assert [str(one.ordering) for one in schedules] == [row[name]["ordering"] for name in NAMED]
    assert {str(one.tiling) for one in schedules} == {row["tiling"]}
    assert schedules[0] == row_major(schedules[0].tiling)


# In CI, test_pairs_search.py goes on with a run that was cut.
@pytest.mark.soak
def test_a_run_that_was_cut_goes_on_and_counters_come_last(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_COMMIT", "aaaaaaaa")
    path = tmp_path / "orders.json"
    measure_cases(bench, SMALL, results(bench, path), limit_s=0.0)
    assert not path.exists()
    measure_cases(bench, SMALL[1:], results(bench, path), limit_s=1e6)
    count_rows(bench, SMALL, results(bench, path))
    before = json.loads(path.read_text())["rows"][0]
    resumed = results(bench, path)
    measure_cases(bench, SMALL, resumed, limit_s=1e6)
    count_rows(bench, SMALL, resumed)
    written = json.loads(path.read_text())
    assert [name_of(row) for row in written["rows"]] == [case.name for case in SMALL]
    assert written["rows"][1] == before
    assert written["meta"]["complete"] is False
    for one in written["rows"]:
        assert all(0 < one[name]["l2_hit_rate"] <= 100 and one[name]["dram_read_bytes"] > 1e8 for name in NAMED)
    monkeypatch.setenv("TUNER_COMMIT", "bbbbbbbb")
    assert results(bench, path).rows == {}


@pytest.mark.slow
def test_a_case_that_fails_is_reported_and_the_others_go_on(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def orderings(space: Space, tiling: Any) -> list[Schedule]:
        return [] if tiling.engine is Engine.WGMMA else orderings_of(space, tiling)

    monkeypatch.setattr("benchmarks.orders.measure.orderings_of", orderings)
    found = results(bench, tmp_path / "orders.json")
    measure_cases(bench, SMALL, found, limit_s=1e6)
    assert list(found.rows) == [SMALL[1].name]
    assert list(found.failures) == [SMALL[0].name]


def test_single_changes_come_before_draws() -> None:
    case = next(case for case in CASES if case.m == 2048 and case.pair == "llama3-8b")
    space = space_of(case.workload, H200)
    base, *others = (schedule.ordering for schedule in orderings_of(space, space.guesses[0]))
    changed = [sum(getattr(one, axis) != getattr(base, axis) for axis in AXES) for one in others]
    assert changed[:15] == [1] * 15
    assert changed[-1] > 1
    assert all(a == 1 or b > 1 for a, b in pairwise(changed[:20]))


#: Axes of an ordering that the benchmark varies; a sync width or a partition belongs to the axis next to it.
AXES = ("rasters", "interleave", "granularity", "assignment")
