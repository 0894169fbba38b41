"""The benchmarks of measuring: complete on the simulated GPU, and their verdicts on planted figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.library import Contest, best_row, torch_row
from benchmarks.common.report import check_row
from benchmarks.common.setting import twin_of
from benchmarks.trust import measuring
from benchmarks.trust.faults import MEMORY_BAR_BYTES, Tally, rows_of
from benchmarks.trust.measuring import Checks, counted
from benchmarks.trust.repeats import LOAD_S, SHAPES, Run, draw_order, kernel_s, measure_all, overhead_row, repeat_rows
from tests.support.counting import apart
from tuner.core.problem.objective import CacheState, LaunchStyle, Procedure, Regime
from tuner.core.problem.workload import Activation
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Stage
from tuner.core.trial.reports.inspection import no_counters
from tuner.core.trial.samples import Round
from tuner.ops.gemm.pairs import ffn_pair

SIMULATED = "simulated:h200"
LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)


def rows_in(path: Path) -> dict[str, dict[str, Any]]:
    return {row.get("check") or row["figure"]: row for row in json.loads(path.read_text())["rows"]}


def runs(seed: int = 0) -> list[Run]:
    twin = twin_of(SIMULATED)
    assert twin is not None
    return measure_all(twin, draw_order(SHAPES, seed, None))


def changed(run: Run, **changes: Any) -> Run:
    assert isinstance(run.outcome, Measured)
    return replace(run, outcome=replace(run.outcome, **changes))


def ours(many: list[Run]) -> list[int]:
    return [i for i, run in enumerate(many) if run.candidate.plan_kind.is_ours]


def test_every_candidate_is_legal_and_a_machine_that_never_changes_repeats(tmp_path: Path) -> None:
    measuring.main(["--gpu", SIMULATED, "--out", str(tmp_path / "measuring.json")])
    rows = rows_in(tmp_path / "measuring.json")
    assert list(rows) == ["overhead_s", "repeat_median", "repeat_p95"]
    assert rows["repeat_median"]["of"] == 20
    assert len(rows["repeat_median"]["each"]) == 22
    assert rows["overhead_s"]["of"] == 22
    assert all(row["holds"] for row in rows.values())


def test_both_passes_measure_the_same_in_different_orders() -> None:
    first, again = draw_order(SHAPES, 0, None), draw_order(SHAPES[::-1], 1, None)
    assert first != again
    assert set(first) == set(again)


@pytest.mark.parametrize(
    ("num_off", "factor", "median_holds", "p95_holds"),
    [(1, 1.5, True, True), (2, 1.03, True, False), (2, 1.019, True, True), (20, 1.012, False, True)],
)
def test_repeats_are_judged_by_their_median_and_by_nineteen_of_twenty(
    num_off: int, factor: float, median_holds: bool, p95_holds: bool
) -> None:
    first, again = runs(), runs(seed=1)
    for i in ours(again)[:num_off]:
        assert isinstance(again[i].outcome, Measured)
        again[i] = changed(again[i], speedup=again[i].outcome.speedup * factor)
    middle, p95 = repeat_rows(first, again)
    assert (middle["holds"], p95["holds"]) == (median_holds, p95_holds)


def test_a_candidate_that_failed_is_named() -> None:
    first, again = runs(), runs()
    failed = Failed(stage=Stage.CHECK, kind=FailureKind.WRONG_NUMBERS, reason="an element was wrong")
    again[3] = replace(again[3], outcome=failed)
    with pytest.raises(ValueError, match="was not measured: an element was wrong"):
        repeat_rows(first, again)


def test_overhead_is_what_neither_builds_nor_runs_kernels() -> None:
    run = runs()[0]
    procedure = Procedure(l2=CacheState.COLD, regime=Regime.BURST, launch=LaunchStyle.PLAIN, chain_length=8)
    rounds = (Round(time_us=1000.0, library_us=1500.0), Round(time_us=1000.0))
    run = changed(run, rounds=rounds, procedure=procedure, stage_s={"build": 2.0, "time": 1.0})
    row = overhead_row([replace(run, wall_s=2.1)])
    assert row["value"] == pytest.approx(0.1 - 8 * 3500e-6)
    assert row["holds"]
    assert not overhead_row([replace(run, wall_s=2.6)])["holds"]
    loaded = changed(run, procedure=replace(procedure, regime=Regime.SUSTAINED))
    assert isinstance(loaded.outcome, Measured)
    assert kernel_s(loaded.outcome) == pytest.approx(8 * 3500e-6 + 3 * LOAD_S)


def contest(*, torch_us: float | None = 10.0, best_us: float = 10.0, activation: Activation) -> Contest:
    return Contest(
        workload=ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64, activation=activation),
        regime=Regime.BURST,
        first_us=[10.0] * 3,
        best_us=[best_us] * 3,
        torch_us=None if torch_us is None else [torch_us] * 3,
        reason="PyTorch cannot be imported" if torch_us is None else "",
        choices=(0, 0),
        num_dropped=0,
    )


def test_pytorch_is_judged_where_it_makes_the_same_calls() -> None:
    same = [contest(torch_us=us, activation=Activation.IDENTITY) for us in (10.1, 9.8)]
    more = contest(torch_us=12.0, activation=Activation.RELU)
    row = torch_row([*same, more])
    assert (row["value"], row["with_activation_worst"]) == (pytest.approx(0.02), pytest.approx(0.2))
    assert row["holds"]
    assert not torch_row([contest(torch_us=9.6, activation=Activation.IDENTITY)])["holds"]
    without = torch_row([contest(torch_us=None, activation=Activation.IDENTITY)])
    assert (without["holds"], without["reason"]) == (False, "PyTorch cannot be imported")


def test_the_best_algorithms_may_be_a_hundredth_slower_and_no_more() -> None:
    assert best_row([contest(best_us=us, activation=Activation.RELU) for us in (9.0, 10.05)])["holds"]
    assert not best_row([contest(best_us=us, activation=Activation.RELU) for us in (9.0, 10.2)])["holds"]


def test_faults_are_judged_by_their_bars() -> None:
    tally = Tally(good=9, hang_losses_s=[2.0, 2.1, 3.9], starts_s=[2.0])
    tally.accounted.update({"hang": 2, "assertion": 1})
    found = {row["check"]: row for row in rows_of(tally, 0, 2**20)}
    assert all(row["holds"] for row in found.values())
    tally.unaccounted.append("assertion: measured")
    tally.wrong.append("measured")
    tally.hang_losses_s[:] = [2.6, 2.6, 4.1]
    found = {row["check"]: row for row in rows_of(tally, 0, MEMORY_BAR_BYTES + 1)}
    assert not any(row["holds"] for row in found.values())
    assert (found["faults_accounted"]["value"], found["faults_accounted"]["bar"]) == (3, 4)


def test_a_check_that_raises_does_not_hold_and_those_before_it_stay(tmp_path: Path) -> None:
    checks = Checks(out=tmp_path / "measuring.json", machine={"gpu": "none", "driver": "", "cuda": ""})
    checks.attempt(("overhead_s",), lambda: [check_row("overhead_s", 0.1, 0.5)])
    checks.attempt(("tensor_ops",), lambda: [check_row("tensor_ops", counted(no_counters("not allowed"), "x"), 0)])
    checks.begin_s -= 10 * measuring.LIMIT_S
    checks.attempt(("copy_dram_read",), lambda: [check_row("copy_dram_read", 0.0, 0.01)])
    rows = rows_in(tmp_path / "measuring.json")
    assert [row["holds"] for row in rows.values()] == [True, False, False]
    assert rows["tensor_ops"]["reason"] == "ValueError: x was not counted: not allowed"
    assert "not started" in rows["copy_dram_read"]["reason"]


def test_what_runs_apart_answers_or_raises_as_if_it_ran_here() -> None:
    assert apart(max, 2, 3) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        apart(int, "three")
