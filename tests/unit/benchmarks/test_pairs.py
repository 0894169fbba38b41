"""The rows of the engines' benchmark, and their search on the twin."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.common.rows import ROWS, SUITES, choose_rows
from benchmarks.common.workbench import Workbench
from benchmarks.pairs.search import search_rows
from benchmarks.pairs.winners import NUM_KEPT, Winners, best_of, distance
from tests.support.spaces import space_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.objective import Regime
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.outcome import Outcome
from tuner.errors import InvalidInput, WorkerError

H200 = CATALOGUE["h200"]


def test_the_rows_are_those_that_were_agreed_on() -> None:
    counts = {"decode-plain": 12, "decode-swiglu": 12, "middle": 24, "prefill-plain": 10, "prefill-swiglu": 10}
    assert Counter(row.suite for row in ROWS) == counts | {"independent": 3}
    assert set(SUITES) == {row.suite for row in ROWS}
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.regime is (Regime.SUSTAINED if row.suite.startswith("prefill") else Regime.BURST)
        assert all(op.gated == ("swiglu" in f"{row.suite}/{row.pair}") for op in row.workload.ops[:1])


@pytest.mark.parametrize("suite", list(SUITES))
def test_every_row_has_legal_schedules(suite: str) -> None:
    rows = choose_rows([suite])
    for row in (rows[0], rows[-1]):
        assert next(iter(space_of(row.workload, H200)), None) is not None


def test_references_are_those_of_the_measured_rates() -> None:
    by_name = {row.name: row for row in ROWS}
    assert by_name["decode-plain/llama3-8b/m1"].reference_us == pytest.approx(53.4, abs=0.1)
    assert by_name["prefill-swiglu/llama3-70b-tp8/m2048"].reference_us == pytest.approx(456.7, abs=0.5)


def test_rows_are_chosen_by_name_pair_or_m_and_not_by_a_part_of_it() -> None:
    assert {row.m for row in choose_rows(["decode-plain"], ["m1"])} == {1}
    assert [row.name for row in choose_rows(names=["middle/gpt3-tp8/m96"])] == ["middle/gpt3-tp8/m96"]
    with pytest.raises(InvalidInput, match="no row is called"):
        choose_rows(["independent"], ["m16"])


def test_a_search_leaves_winners_and_a_second_one_begins_with_its_neighbours(bench: Workbench, tmp_path: Path) -> None:
    first, second = choose_rows(["decode-plain"], ["decode-plain/llama3-8b/m16", "decode-plain/llama3-8b/m32"])
    path = tmp_path / "winners.json"
    assert search_rows(bench, [first], Winners(path), 20, in_parallel=False) == []
    written = json.loads(path.read_text())
    assert list(written) == [first.name]
    assert written[first.name]["trials"] == 20
    assert set(written[first.name]) >= {"workload", "objective", "commit", "date", "library_us", "winners"}
    winners = Winners(path)
    figures = {key: written[first.name][key] for key in ("trials", "commit")}
    winners.put(first, winners.of(first), figures, first.problem.objective)
    assert Winners(path).of(first) == winners.of(first)
    assert (winners.num_trials(first), winners.num_trials(second)) == (20, 0)
    kinds = Counter(winner.candidate.plan_kind for winner in winners.of(first))
    assert all(1 <= kinds[kind] <= most for kind, most in NUM_KEPT.items() if kind in kinds)
    assert kinds[PlanKind.FUSED] == NUM_KEPT[PlanKind.FUSED]
    priors = winners.priors(second, H200)
    fused = [winner.candidate for winner in winners.of(first) if winner.candidate.plan_kind is PlanKind.FUSED]
    assert set(fused[:2]) & set(priors)
    assert not [candidate for candidate in priors if candidate.plan_kind is PlanKind.FUSED_PDL]
    assert {candidate.plan_kind for candidate in winners.priors(first, H200)} == set(kinds)


@pytest.mark.parametrize(
    ("error", "message"), [(WorkerError("the card fell off"), "the card fell off"), (KeyError("m"), "KeyError: 'm'")]
)
def test_a_row_that_fails_is_reported_and_the_others_go_on(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    first, second = choose_rows(["independent"])[1:]
    outcome = bench.outcome

    def fails_once(problem: object, candidate: Candidate, *more: object) -> Outcome:
        if problem == first.problem:
            raise error
        return outcome(second.problem, candidate, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(bench, "outcome", fails_once)
    winners = Winners(tmp_path / "winners.json")
    failures = search_rows(bench, [first, second], winners, 12, in_parallel=False)
    assert failures == [f"{first.name}: {message}"]
    assert (winners.num_trials(first), winners.num_trials(second)) == (0, 12)


def test_no_row_is_begun_when_the_time_is_up(bench: Workbench, tmp_path: Path) -> None:
    rows = choose_rows(["independent"])
    winners = Winners(tmp_path / "winners.json")
    assert search_rows(bench, rows, winners, 5, in_parallel=False, limit_s=-1.0) == []
    assert [winners.num_trials(row) for row in rows] == [5, 0, 0]


def test_gated_rows_learn_nothing_from_plain_ones() -> None:
    by_name = {row.name: row for row in ROWS}
    gated, plain = by_name["decode-swiglu/llama3-8b/m16"], by_name["decode-plain/llama3-8b/m16"]
    assert distance(gated, plain) == math.inf
    assert distance(gated, by_name["decode-swiglu/llama3-8b/m32"]) == 1.0
    assert distance(gated, by_name["middle/llama3-8b-swiglu/m128"]) == 3.0


def test_what_never_worked_is_no_winner() -> None:
    assert best_of([]) == []
