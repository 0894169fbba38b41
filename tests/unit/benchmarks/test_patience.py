"""What a budget or a patience would have found, read off a longer search."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cpu.patience import Step, figures, replay
from benchmarks.search import patience

NONE = Step(speedup=None, true_us=None)
STEPS = [
    NONE,  # the library
    Step(speedup=1.0, true_us=10.0),
    Step(speedup=1.2, true_us=8.0),
    NONE,
    Step(speedup=1.203, true_us=8.1),  # measured faster by luck, and by too little to be progress
    NONE,
    Step(speedup=1.5, true_us=6.0),
]


def test_a_shorter_budget_finds_what_the_longer_one_had_found_by_then() -> None:
    assert replay(STEPS, 7, None) == (7, 6.0)
    assert replay(STEPS, 3, None) == (3, 8.0)
    assert replay(STEPS, 5, None) == (5, 8.1)
    assert replay(STEPS, 100, None) == (7, 6.0)


def test_patience_counts_from_the_last_trial_that_was_progress() -> None:
    assert replay(STEPS, 7, 3) == (6, 8.1)
    assert replay(STEPS, 7, 2) == (5, 8.1)
    assert replay(STEPS, 7, 4) == (7, 6.0)


def test_a_row_has_the_mean_of_the_trials_and_the_share_of_the_longest_search() -> None:
    assert figures([STEPS, STEPS[:3]], 7, 3) == {
        "budget": 7,
        "patience": 3,
        "mean_trials": 4.5,
        "median_share": round((6.0 / 8.1 + 1) / 2, 4),
        "worst_share": round(6.0 / 8.1, 4),
    }


def recorded(kind: str, speedup: float, *, outcome: str = "measured", truncated: bool = False) -> dict[str, Any]:
    rounds = [[10.0, 10.0 * speedup, 0, 0, None]] * 5 + [[10.0, 90.0, 0, 0, "slow_clock"]] * 6
    return {"candidate": {"plan_kind": kind}, "outcome": outcome, "truncated": truncated, "rounds": rounds}


def test_the_jobs_of_a_card_are_replayed_by_what_their_trials_measured(tmp_path: Path) -> None:
    trials = [
        recorded("library", 1.0),
        recorded("fused", 1.0),
        recorded("fused", 1.5, truncated=True),
        recorded("fused", 1.5, outcome="failed"),
        recorded("fused_pdl", 1.25),
    ]
    assert patience.steps_of({"trials": trials}) == [
        NONE,
        Step(speedup=1.0, true_us=1.0),
        NONE,
        NONE,
        Step(speedup=1.25, true_us=0.8),
    ]
    samples, meta, out = tmp_path / "samples.jsonl.gz", tmp_path / "search.json", tmp_path / "patience.json"
    with gzip.open(samples, "wt") as file:
        for some in (trials * 25, trials):
            file.write(json.dumps({"target": "h100", "trials": some}) + "\n")
    meta.write_text(json.dumps({"meta": {"gpu": "a card", "commit": "abc", "date": "then", "command": "it"}}))
    patience.main([str(samples), "--meta", str(meta), "--least-trials", "100", "--out", str(out)])
    found = json.loads(out.read_text())
    assert (found["meta"]["gpu"], found["meta"]["trials"]) == ("a card", [125])
    check, *rows = found["rows"]
    assert (check["check"], check["value"], check["holds"]) == ("share_of_the_defaults", 1.0, True)
    assert {row["budget"] for row in rows} == {20, 40, 60, 80, 100}
    with pytest.raises(SystemExit, match="no job of 200 trials"):
        patience.main([str(samples), "--meta", str(meta), "--out", str(out)])
