"""The benchmark of chains on the simulated twin: its rows, its schedules, and what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.chains.measure import main
from benchmarks.chains.rows import BARS, ROWS, choose_rows
from benchmarks.chains.schedules import in_runs_of, schedules_of, tilings_of
from tests.support.cases import H200
from tuner.core.legal.legality import tiling_problem
from tuner.errors import InvalidInput


@pytest.mark.parametrize("row", [row for row in ROWS if row.m in (16, 512)], ids=lambda row: row.name)
def test_every_row_has_several_legal_tilings_that_fill_shared_memory(row: object) -> None:
    workload = row.workload  # type: ignore[attr-defined]
    tilings = tilings_of(workload, H200)
    assert len(tilings) >= 5
    assert all(tiling_problem(workload, H200, tiling) is None for tiling in tilings)
    assert all(tiling.num_stages >= 3 for tiling in tilings)


def test_a_row_is_named_or_all_are_taken() -> None:
    assert [row.name for row in choose_rows(["qwen2.5-7b/m16"])] == ["qwen2.5-7b/m16"]
    assert {row.chain for row in choose_rows(["m64"])} == set(BARS)
    with pytest.raises(InvalidInput, match="no row is called m17"):
        choose_rows(["m17"])


def test_a_fused_launch_is_tried_in_more_orders() -> None:
    workload = choose_rows(["llama3-70b-tp8-run/m16"])[0].workload
    apart, fused = (schedules_of(workload, H200, is_fused=is_fused) for is_fused in (False, True))
    assert fused[: len(apart)] == apart
    assert len(fused) > len(apart)


def test_a_chain_of_four_is_launched_in_six_ways_of_runs_and_one_of_two_in_none() -> None:
    four, two = (
        schedules_of(choose_rows([name])[0].workload, H200, is_fused=True)[0]
        for name in ("llama3-8b/m16", "llama3-70b-tp8-run/m16")
    )
    starts = [one.ordering.run_starts for one in in_runs_of(four)]
    assert starts == [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3)]
    assert in_runs_of(two) == []


def test_a_row_is_written_with_every_kind_and_goes_on_where_it_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "chains.json"
    asked = ["measure", "--gpu", "simulated:h200", "--row", "llama3-70b-tp8-run/m16", "--most", "3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", asked)
    main()
    written = json.loads(out.read_text())
    (row,) = written["rows"]
    assert (row["chain"], row["m"]) == ("llama3-70b-tp8-run", 16)
    assert {"library", "fused", "fused_pdl"} < set(row["kind_us"])
    assert row["verdict_speedup"] > 0
    assert row["over_reference"] > 1
    assert not written["meta"]["complete"]
    assert written["meta"]["chains"]["llama3-70b-tp8-run"]["mean"] == row["verdict_speedup"]
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*asked, "--missing"])
    main()
    assert "llama3-70b-tp8-run/m16 {" not in capsys.readouterr().out
