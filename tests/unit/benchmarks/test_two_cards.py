"""The program that compares two cards with one, on two simulated ones: what it writes, and that one card is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search import two_cards


@pytest.mark.slow
def test_it_writes_what_each_card_and_both_have_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_cards, "LATENCY_S", 0.05)
    monkeypatch.setattr(two_cards, "BAR", 0.0)  # of a busy machine nothing is demanded
    monkeypatch.setattr(two_cards, "MIN_COUNTED", 2)
    out = tmp_path / "two.json"
    with pytest.raises(SystemExit) as ended:
        two_cards.main(["--gpu", "simulated:h200", "--seconds", "45", "--out", str(out)])
    assert ended.value.code == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert min(sum(row[f"{name}_outcomes"].values()) for name in ("first", "second")) >= 12
    assert sum(row["both_outcomes"].values()) >= 24
    alone = (row["first_per_s"] + row["second_per_s"]) / 2
    assert row["value"] == pytest.approx(row["both_per_s"] / alone, rel=1e-2)


def test_one_card_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_cards, "make_evaluators", lambda *_, **__: ([], "there is none"))
    with pytest.raises(SystemExit, match="two cards are needed: there is none"):
        two_cards.run("auto", [0], 14.0)


@pytest.mark.slow
def test_too_few_trials_are_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_cards, "LATENCY_S", 2.0)
    with pytest.raises(SystemExit, match="do not count: give more --seconds"):
        two_cards.run("simulated:h200", [0], 6.0)
