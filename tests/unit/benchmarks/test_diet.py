"""The table of values that no fast schedule uses: its counts, and the trials of a folder of jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.pairs.search import Options
from benchmarks.search import diet
from tests.support.cases import ordering, wgmma
from tests.unit.benchmarks.test_pairs_search import SMALL, opened, search
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.job import PriorsChoice


def with_window(window: int) -> Schedule:
    return Schedule.of(tiling=wgmma((128, 128, 64), (128, 128, 64), num_stages=4, window=window), ordering=ordering())


def test_a_value_far_from_the_best_of_each_workload_is_unused_unless_a_winner_has_it() -> None:
    least, more = with_window(0), with_window(4)
    tried = [(name, least, 1.2) for name in "abc"] + [("a", more, 1.1), ("b", more, 1.15)]
    found = {row["value"]: row for row in diet.rows_of(tried, []) if row["axis"] == "window"}
    assert (found["least"]["tried"], found["least"]["near"], found["least"]["unused"]) == (3, 3, False)
    assert (found["more"]["tried"], found["more"]["rows"], found["more"]["unused"]) == (2, 2, True)
    assert found["more"]["behind"] == pytest.approx((1 - 1.1 / 1.2 + 1 - 1.15 / 1.2) / 2, abs=1e-4)
    assert not found["more"]["judged"]
    kept = {row["value"]: row for row in diet.rows_of(tried, [more]) if row["axis"] == "window"}
    assert (kept["more"]["kept"], kept["more"]["unused"]) == (1, False)
    (judged,) = (row for row in diet.rows_of(15 * tried, []) if (row["axis"], row["value"]) == ("window", "more"))
    assert judged["judged"]


@pytest.mark.soak
def test_its_trials_are_those_of_a_folders_jobs_without_priors(tmp_path: Path) -> None:
    with opened(tmp_path) as jobs:
        assert search(jobs, tmp_path, SMALL, options=Options(trials=8, priors=PriorsChoice.NONE)) == {}
    diet.main([str(tmp_path / "data"), "--least-trials", "8", "--out", str(tmp_path / "diet.json")])
    written = json.loads((tmp_path / "diet.json").read_text())
    assert written["meta"]["targets"] == ["simulated:h200"]
    assert 0 < written["meta"]["trials"] <= 8
    tiles = [row["tried"] for row in written["rows"] if row["axis"] == "raster"]
    assert max(tiles) > 0
    diet.main([str(tmp_path / "data"), "--least-trials", "9", "--out", str(tmp_path / "none.json")])
    assert json.loads((tmp_path / "none.json").read_text())["rows"] == []
