"""The program that compares two cards with one, on two simulated ones: what it writes, and that one card is refused."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.search import two_cards
from benchmarks.search.two_cards import NUM_FIRST, Bench, Phase, row_of


@pytest.mark.slow
def test_it_writes_what_each_card_and_both_have_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_cards, "LATENCY_S", 0.05)
    monkeypatch.setattr(two_cards, "BAR", 0.0)  # of a busy machine nothing is demanded
    monkeypatch.setattr(two_cards, "MIN_COUNTED", 2)
    monkeypatch.setattr(two_cards, "NUM_FIRST", 4)
    out = tmp_path / "two.json"
    with pytest.raises(SystemExit) as ended:
        two_cards.main(["--gpu", "simulated:h200", "--trials", "8", "--seconds", "400", "--out", str(out)])
    assert ended.value.code == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["trials"] == [4, 8]
    assert [len(row[name]["jobs"]) for name in ("first", "both", "second")] == [1, 2, 1]
    assert all(job["trials"] >= 8 for name in ("first", "both", "second") for job in row[name]["jobs"])
    assert all(card["card_busy_s"] > 0 for card in row["both"]["cards"])
    assert row["both"]["busy_cores"] >= row["both"]["own_cores"] > 0
    alone = (row["first_per_s"] + row["second_per_s"]) / 2
    assert row["value"] == pytest.approx(row["both_per_s"] / alone, rel=1e-2)


def test_the_same_trials_of_each_job_count() -> None:
    def ticks(period_s: float, count: int) -> list[float]:
        """Late with the first ones, which do not count; slow with those that the slowest job does not have."""
        first = [1000.0 + n for n in range(NUM_FIRST)]
        return [*first, *(first[-1] + period_s * (n + 1) * (1 if n < 40 else 9) for n in range(count - NUM_FIRST))]

    def phase(*periods_s: float, count: int) -> Phase:
        return Phase(finished_at=[ticks(one, count) for one in periods_s], figures={})

    phases = {"first": phase(0.1, count=90), "both": phase(0.1, 0.2, count=60), "second": phase(0.2, count=80)}
    row = row_of(phases, 200)
    assert (row["trials"], row["first_per_s"], row["both_per_s"]) == ([NUM_FIRST, 60], 10.0, 15.0)
    assert (row["value"], row["holds"]) == (2.0, True)


def test_too_few_trials_are_no_rate() -> None:
    few = Phase(finished_at=[[float(n) for n in range(NUM_FIRST + 3)]], figures={})
    with pytest.raises(SystemExit, match="a job has 23 trials, of which 20 do not count: give more --seconds"):
        row_of({"first": few, "both": few, "second": few}, 200)


def test_one_card_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_cards, "make_evaluators", lambda *_, **__: ([], "there is none"))
    with pytest.raises(SystemExit, match="two cards are needed: there is none"), ExitStack() as ends:
        Bench("auto", tmp_path, ends)
