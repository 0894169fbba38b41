"""The benchmark of chains on the simulated GPU: its rows, its jobs, and its output."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.chains import search
from benchmarks.chains.boundaries import boundaries_of
from benchmarks.chains.results import summary_of
from benchmarks.chains.rows import BARS, ROWS, choose_rows
from tuner.core.trial.reports.inspection import TaskSpan, Trace
from tuner.errors import InvalidInput
from tuner.winners import ShippedWinners


def test_a_row_is_named_or_all_are_taken() -> None:
    assert [row.name for row in choose_rows(["qwen2.5-7b/m16"])] == ["qwen2.5-7b/m16"]
    assert {row.chain for row in choose_rows(["m64"])} == set(BARS)
    in_order = choose_rows(["qwen2.5-7b/m64", "llama3-8b/m1", "qwen2.5-7b/m64"])
    assert [row.name for row in in_order] == ["qwen2.5-7b/m64", "llama3-8b/m1"], (
        "if time is short, the first row is measured first"
    )
    assert choose_rows() == ROWS
    with pytest.raises(InvalidInput, match="no row is called m17"):
        choose_rows(["m17"])


def test_a_chain_is_summed_up_on_a_card_whose_rates_nobody_measured() -> None:
    rows = [{"chain": "llama3-8b", "m": m, "verdict_speedup": 1.2} for m in (1, 16, 128)]
    (summary,) = (found for chain, found in summary_of(rows).items() if chain == "llama3-8b")
    assert (summary["mean"], summary["over_reference"], summary["least_of_many_rows"]) == (1.2, {}, 1.2)


# In CI, test_pairs_search.py goes on with a run that was cut.
@pytest.mark.soak
def test_a_row_is_written_with_every_kind_and_goes_on_where_it_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, row_name = tmp_path / "chains.json", "llama3-70b-tp8-run/m16"
    asked = ["search", "--gpu", "simulated:h200", "--row", row_name, "--trials", "10", "--out", str(out)]
    asked += ["--data", str(tmp_path / "jobs"), "--winners", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", asked)
    search.main()
    written = json.loads(out.read_text())
    (row,) = written["rows"]
    assert (row["chain"], row["m"], row["trials"]) == ("llama3-70b-tp8-run", 16, 10)
    assert {"library", "fused", "fused_pdl"} < set(row["kind_us"])
    assert row["verdict_speedup"] > 0
    assert row["over_reference"] > 1
    assert [boundary["op"] for boundary in row["boundaries"]] == ["gate_up", "down"]
    assert not written["meta"]["complete"]
    kept = ShippedWinners(tmp_path).of("simulated:h200")
    assert {str(one.candidate.plan_kind) for one in kept} >= {"fused", "fused_pdl"}
    assert {one.source for one in kept} == {f"shipped chains/{row_name}"}
    assert written["meta"]["chains"]["llama3-70b-tp8-run"]["mean"] == row["verdict_speedup"]
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*asked, "--missing"])
    search.main()
    assert row_name not in capsys.readouterr().out


def span(op: int, cta: int, *times_us: int) -> TaskSpan:
    taken, ready, loaded, computed, stored = (1000 * time for time in times_us)
    return TaskSpan(
        launch=0, task=2 * op + cta, op=op, tile_m=0, tile_n=cta, cta=cta, sm=cta,
        taken_ns=taken, ready_ns=ready, loaded_ns=loaded, computed_ns=computed, stored_ns=stored,
    )  # fmt: skip


def test_a_boundary_is_from_the_last_product_before_it_to_the_first_operands_behind_it() -> None:
    spans = (
        span(0, 0, 0, 0, 1, 4, 6),
        span(0, 1, 0, 0, 1, 6, 9),
        span(1, 0, 6, 10, 12, 20, 21),
        span(1, 1, 9, 11, 13, 19, 20),
    )
    trace = Trace(spans=spans, op_names=("up", "down"), makespan_ns=21000, shares=(), tail=0.0, simulated=True)
    first, second = boundaries_of(trace)
    assert first == {"op": "up", "begin_us": 1.0, "end_us": 9.0, "compute_us": 4.0, "store_us": 2.5}
    assert (second["idle_us"], second["spread_us"], second["signal_us"], second["load_us"]) == (7.5, 1.5, 1.5, 2.0)
