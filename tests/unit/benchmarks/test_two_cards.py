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
    out = tmp_path / "two.json"
    with pytest.raises(SystemExit) as ended:
        two_cards.main(["--gpu", "simulated:h200", "--trials", "14", "--out", str(out)])
    assert ended.value.code == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert [sum(row[f"{name}_outcomes"].values()) for name in ("first", "second", "both")] == [14, 14, 28]
    alone = (row["first_per_s"] + row["second_per_s"]) / 2
    assert row["value"] == pytest.approx(row["both_per_s"] / alone, rel=1e-2)


def test_one_card_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_cards, "make_evaluators", lambda *_, **__: ([], "there is none"))
    with pytest.raises(SystemExit, match="two cards are needed: there is none"):
        two_cards.run("auto", [0], 14)
