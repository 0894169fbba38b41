"""The program that gives one job a second card, on two simulated ones: a run that is cut leaves what it measured, and
the next one goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search import shared

ROWS = ("decode-swiglu/llama3-8b/m16", "decode-swiglu/llama3-8b/m32")


@pytest.mark.slow
def test_a_run_that_is_cut_leaves_its_jobs_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job, begun, out = shared.run_job, list[str](), tmp_path / "shared.json"
    command = ["--gpu", "simulated:h200", "--trials", "6", "--out", str(out)]
    command += [word for name in ROWS for word in ("--row", name)]

    def run_until_stopped(row: Any, *options: Any) -> Any:
        begun.append(row.name)
        if row.name == ROWS[1] and begun.count(ROWS[1]) == 2:
            raise KeyboardInterrupt
        return run_job(row, *options)

    monkeypatch.setattr(shared, "run_job", run_until_stopped)
    with pytest.raises(KeyboardInterrupt):
        shared.main(command)
    partial = json.loads(out.read_text())["rows"]
    assert [(row["row"], row["cards"]) for row in partial] == [(ROWS[0], 1), (ROWS[0], 2), (ROWS[0], 1), (ROWS[1], 1)]
    assert [name for row in partial for name in ("speedup", "loss") if name in row] == ["speedup", "loss"]
    shared.main(command)
    again = json.loads(out.read_text())["rows"]
    assert again[:3] == partial[:3]
    assert [(row["row"], row["cards"]) for row in again[3:]] == [(ROWS[1], 1), (ROWS[1], 2), (ROWS[1], 1)]


def test_rows_of_a_cut_run_or_of_another_budget_are_made_anew() -> None:
    jobs = [{"row": "a", "budget": 60}] * 3 + [{"row": "b", "budget": 60}] * 2 + [{"row": "c", "budget": 300}] * 3
    assert list(shared.whole_rows(jobs, 60)) == ["a"]
    assert list(shared.whole_rows(jobs, 300)) == ["c"]
