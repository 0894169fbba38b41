"""How often two draws of recorded finals disagree about who is ahead."""

from __future__ import annotations

import json
import random
from pathlib import Path

from benchmarks.trust import verdicts


def finalists(lead: float, noise: float) -> list[dict[str, list[float]]]:
    """Two, the second one slower by `lead`."""
    draw = random.Random(1)
    fast = [100 * draw.gauss(1, noise) for _ in range(40)]
    return [{"times_us": fast}, {"times_us": [us * (1 + lead) * draw.gauss(1, noise) for us in fast]}]


def test_only_kernels_near_each_other_are_compared_whichever_is_faster() -> None:
    (ratios,) = verdicts.pairs_of(finalists(0.02, 0.0))
    assert {round(ratio, 6) for ratio in ratios} == {1.02}
    assert verdicts.pairs_of(finalists(0.02, 0.0)[::-1]) == [ratios]
    assert verdicts.pairs_of(finalists(0.05, 0.0)) == verdicts.pairs_of(finalists(0.001, 0.0)) == []


def test_a_lead_at_the_bands_edge_is_called_one_by_the_median_alone() -> None:
    row = verdicts.row_of("burst", [finalists(0.0097, 0.002)])
    assert row["pairs"] == row["within_the_band"] == 1
    ahead = row["called_ahead_within_the_band"]
    assert ahead["interval"] == 0 < ahead["median"]


def test_a_clear_lead_is_called_one_by_both() -> None:
    row = verdicts.row_of("burst", [finalists(0.025, 0.002)])
    assert row["disagree"] == {"interval": 0, "median": 0}
    assert row["called_ahead_within_the_band"] == {"interval": None, "median": None}


def test_a_file_has_a_row_for_each_regime_and_says_where_the_rounds_come_from(tmp_path: Path) -> None:
    search = tmp_path / "search.json"
    meta = {
        "gpu": "NVIDIA H100",
        "driver": "1",
        "cuda": "13.0",
        "commit": "abc",
        "date": "today",
        "command": "measured",
    }
    jobs = [{"job": "burst/a", "contest": finalists(0.02, 0.001)}, {"job": "burst/b"}]
    search.write_text(json.dumps({"meta": meta, "jobs": jobs}))
    verdicts.main(["--search", str(search)])
    report = json.loads((tmp_path / "verdicts.json").read_text())
    assert [(row["regime"], row["pairs"]) for row in report["rows"]] == [("burst", 1), ("sustained", 0)]
    assert report["meta"]["recorded_at"] == "abc"
