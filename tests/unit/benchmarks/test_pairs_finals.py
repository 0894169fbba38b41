"""The finals of the engines' benchmark on the twin: what they write, and what a run that was cut leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.report import machine_of
from benchmarks.common.rows import ROWS, SUITES, choose_rows
from benchmarks.common.workbench import Workbench
from benchmarks.pairs.finals import Results, finalists_of, judge_row, main, measure_rows
from benchmarks.pairs.search import search_rows
from benchmarks.pairs.summary import summarise
from benchmarks.pairs.winners import Winner, Winners
from tests.support.spaces import space_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import FinalsTimes
from tuner.errors import TunerError

H200 = CATALOGUE["h200"]
SEARCHED = choose_rows(names=["decode-plain/gpt3-tp8/m16", "decode-plain/llama3-8b/m16"])
KEYS = {
    "suite", "pair", "m", "regime", "kind_us", "fused_speedup", "fused_speedup_pdl", "ci95", "verdict", "winner",
    "verdict_speedup", "reference_us", "over_reference", "rel_error", "schedule", "wall_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def winners_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("winners") / "winners.json"


@pytest.fixture(scope="module")
def winners(bench: Workbench, winners_file: Path) -> Winners:
    found = Winners(winners_file)
    assert search_rows(bench, SEARCHED, found, 25, in_parallel=False) == []
    return found


def results(bench: Workbench, path: Path) -> Results:
    return Results(path, machine_of(bench.evaluator.environment()))


def test_every_plan_kind_is_measured_and_the_row_says_what_was_found(
    bench: Workbench, winners: Winners, tmp_path: Path
) -> None:
    path = tmp_path / "pairs.json"
    measure_rows(bench, SEARCHED, winners, results(bench, path))
    written = json.loads(path.read_text())
    assert [row["pair"] for row in written["rows"]] == ["llama3-8b", "gpt3-tp8"]
    assert written["meta"]["complete"] is False
    assert written["meta"]["suites"]["decode-plain"]["num_rows"] == 2
    for row in written["rows"]:
        assert set(row) >= KEYS
        assert set(row["kind_us"]) == {str(kind) for kind in PlanKind if kind.is_for(2)}
        library_us, fused_us = row["kind_us"]["library"], row["kind_us"]["fused"]
        assert row["fused_speedup"] == pytest.approx(library_us / fused_us, rel=0.02)
        assert row["ci95"][0] <= row["fused_speedup"] <= row["ci95"][1]
        assert row["verdict_speedup"] == pytest.approx(library_us / row["kind_us"][row["winner"]], rel=0.02)
        assert "energy_mj" not in row


def test_pytorch_is_a_cross_check_that_says_why_it_is_missing(
    bench: Workbench, winners: Winners, tmp_path: Path
) -> None:
    for asked in (True, False):
        path = tmp_path / f"pairs_{asked}.json"
        measure_rows(bench, SEARCHED[:1], winners, results(bench, path), torch=asked)
        [row] = json.loads(path.read_text())["rows"]
        with_torch = {name: row[name] for name in ("torch_us", "torch_reason") if name in row}
        assert with_torch == ({"torch_us": None, "torch_reason": "a simulated GPU has no PyTorch"} if asked else {})


def test_rows_of_the_same_commit_stay_and_those_of_another_go(
    bench: Workbench, winners: Winners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pairs.json"
    monkeypatch.setenv("TUNER_COMMIT", "aaaaaaaa")
    measure_rows(bench, SEARCHED[:1], winners, results(bench, path))
    measure_rows(bench, SEARCHED[1:], winners, results(bench, path))
    assert len(json.loads(path.read_text())["rows"]) == 2
    monkeypatch.setenv("TUNER_COMMIT", "bbbbbbbb")
    measure_rows(bench, SEARCHED[1:], winners, results(bench, path))
    written = json.loads(path.read_text())
    assert (len(written["rows"]), written["meta"]["commit"]) == (1, "bbbbbbbb")


def test_a_run_that_was_cut_is_ended_by_the_rows_that_are_missing(
    winners: Winners,
    winners_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert all(winners.of(row) for row in SEARCHED)
    monkeypatch.setenv("TUNER_COMMIT", "aaaaaaaa")
    path = tmp_path / "pairs.json"
    where = ["--gpu", "simulated:h200", "--winners", str(winners_file), "--out", str(path)]
    measured = []
    for names in (["gpt3-tp8"], ["gpt3-tp8", "llama3-8b"]):
        rows = [argument for name in names for argument in ("--row", f"decode-plain/{name}/m16")]
        monkeypatch.setattr("sys.argv", ["pairs_finals", *where, *rows, "--missing"])
        main()
        measured.append([line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if "/m16:" in line])
    assert measured == [["decode-plain/gpt3-tp8/m16"], ["decode-plain/llama3-8b/m16"]]
    assert len(json.loads(path.read_text())["rows"]) == 2


def test_a_row_without_winners_is_reported_and_the_others_are_measured(
    bench: Workbench, winners: Winners, tmp_path: Path
) -> None:
    path = tmp_path / "pairs.json"
    missing = choose_rows(names=["decode-plain/llama3-8b/m1"])
    written = results(bench, path)
    measure_rows(bench, (*missing, SEARCHED[0]), winners, written)
    assert written.failures == {missing[0].name: "no winners: search it first"}
    meta = json.loads(path.read_text())["meta"]
    assert (meta["failures"], meta["suites"]["decode-plain"]["num_rows"]) == (written.failures, 1)


def winner(kind: PlanKind, schedule: Schedule, time_us: float) -> Winner:
    return Winner(candidate=Candidate(plan_kind=kind, schedule=schedule), time_us=time_us, speedup=1.0, rel_error=1e-4)


def test_a_kind_that_launches_in_another_way_also_tries_the_best_that_it_varies() -> None:
    row = SEARCHED[0]
    one, other, third = (schedule for schedule, _ in zip(space_of(row.workload, H200), range(3), strict=False))
    for own_us, order in ((9.0, [other, one]), (11.0, [one, other])):
        found = [
            winner(PlanKind.FUSED, one, 10.0),
            winner(PlanKind.FUSED, third, 10.5),
            winner(PlanKind.FUSED_PDL, other, own_us),
        ]
        finalists = finalists_of(row, found, H200)
        assert finalists[0].plan_kind is PlanKind.LIBRARY
        tried = [candidate.schedule for candidate in finalists if candidate.plan_kind is PlanKind.FUSED_PDL]
        assert tried == order
    assert [c.plan_kind for c in finalists_of(row, [winner(PlanKind.TWO_LAUNCHES, one, 1.0)], H200)] == [
        PlanKind.LIBRARY,
        PlanKind.TWO_LAUNCHES,
        PlanKind.TWO_LAUNCHES_PDL,
    ]


def test_the_verdicts_figure_is_that_of_the_fresh_process_and_energy_is_reported_by_kind() -> None:
    row = SEARCHED[0]
    schedule = next(iter(space_of(row.workload, H200)))
    finalists = [
        Candidate(plan_kind=PlanKind.LIBRARY),
        Candidate(plan_kind=PlanKind.FUSED, schedule=schedule),
        Candidate(plan_kind=PlanKind.FUSED_PDL, schedule=schedule),
    ]
    times = FinalsTimes(
        times_us=((100.0,) * 8, (50.0,) * 4 + (80.0,) * 4, None),
        reasons=("", "", "it hung"),
        process_of_round=(0,) * 4 + (1,) * 4,
        energy_mj=(30.0, 20.0, None),
    )
    figures = judge_row(row, finalists, times)
    assert (figures["winner"], figures["verdict_speedup"]) == (PlanKind.FUSED, 1.25)
    assert figures["energy_mj"] == {"library": 30.0, "fused": 20.0}
    assert figures["reasons"] == ["it hung"]
    assert "fused_speedup_pdl" not in figures
    with pytest.raises(TunerError, match="no library or no fused"):
        judge_row(row, finalists[:1], FinalsTimes(times_us=((1.0,),), reasons=("",), process_of_round=(0,)))


def rows_at(suite: str, **figures: float) -> list[dict[str, Any]]:
    common = {"fused_speedup": 2.0, "fused_speedup_pdl": 2.0, "verdict_speedup": 2.0, "over_reference": 1.0}
    return [{"suite": suite, "pair": row.pair, "m": row.m, **common, **figures} for row in ROWS if row.suite == suite]


@pytest.mark.parametrize("suite", list(SUITES))
def test_a_suite_holds_only_as_a_whole_and_where_no_row_is_below_its_bar(suite: str) -> None:
    rows = rows_at(suite)
    assert summarise(suite, rows)["holds"] is True
    assert summarise(suite, rows[1:])["holds"] is None
    assert summarise(suite, rows)["fused"] == 2.0
    low = rows_at(suite, fused_speedup=0.9, verdict_speedup=0.9)
    assert summarise(suite, low)["holds"] is False


def test_a_bar_over_the_reference_is_for_few_rows_of_the_named_pairs() -> None:
    missed = summarise("decode-swiglu", rows_at("decode-swiglu", over_reference=1.2))["missed"]
    assert len(missed) == 4
    assert all("reference" in one for one in missed)
