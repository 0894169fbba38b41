from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.reference import H200, reference_us
from benchmarks.common.rows import ROWS, SUITES
from benchmarks.pairs import page as pairs_page
from benchmarks.pairs.page import BEGIN, END, draw, drawn, others_beside, table
from benchmarks.pairs.summary import summarise

SVG = "{http://www.w3.org/2000/svg}"


def made_up(suite: str) -> list[dict[str, Any]]:
    """Rows with different figures."""
    return [
        {
            "suite": suite,
            "pair": row.pair,
            "m": row.m,
            "torch_us": 120.0,
            "kind_us": {"library": 100.0 + i, "fused": 90.0, "fused_pdl": 85.0, "two_launches": 95.0},
            "winner": "fused_pdl",
            "fused_speedup": 1.1 + i / 100,
            "fused_speedup_pdl": 1.2,
            "verdict_speedup": 1.19,
            "ci95": [1.09, 1.12 + i / 100],
            "reference_us": reference_us(row.workload, H200),
            "over_reference": 1.1,
        }
        for i, row in enumerate(row for row in ROWS if row.suite == suite)
    ]  # fmt: skip


def made_up_results(*suites: str) -> dict[str, Any]:
    rows = [row for suite in suites for row in made_up(suite)]
    summaries = {suite: summarise(suite, rows) for suite in SUITES}
    meta = {
        "gpu": "NVIDIA H200",
        "driver": "1",
        "cuda": "13.0",
        "commit": "c" * 40,
        "date": "2026-01-01T00:00:00+00:00",
    }
    return {"meta": {**meta, "complete": False, "suites": summaries}, "rows": rows}


@pytest.mark.parametrize("suite", list(SUITES))
def test_a_plot_has_every_figure_of_every_row_and_faster_is_higher(suite: str) -> None:
    rows = made_up(suite)
    root = ET.fromstring(draw(suite, rows))
    width, height = float(root.get("width", "0")), float(root.get("viewBox", "").split()[3])
    dots = [dot for dot in root.iter(f"{SVG}circle") if dot.find(f"{SVG}title") is not None]
    assert len(dots) == 3 * len(rows)
    for dot in dots:
        assert 0 < float(dot.get("cx", "")) < width
        assert 0 < float(dot.get("cy", "")) < height
    fused = {dot.find(f"{SVG}title").text: float(dot.get("cy", "")) for dot in dots}  # type: ignore[union-attr]
    by_gain = sorted((float(str(title).rsplit(": ", 1)[1]), y) for title, y in fused.items())
    assert [y for _, y in by_gain] == sorted((y for _, y in by_gain), reverse=True)


def test_a_table_has_a_line_per_row_and_a_cell_per_column() -> None:
    lines = table(made_up("independent"))
    assert len(lines) == 2 + 3
    assert len({line.count("|") for line in lines}) == 1
    assert "| 120.0 | 100.0 | 90.0 | 85.0 | 95.0 | fused pdl | 1.190 |" in lines[2]


def test_rows_without_a_figure_are_drawn_too() -> None:
    rows = made_up("independent")
    del rows[0]["fused_speedup_pdl"], rows[0]["kind_us"]["fused_pdl"]
    assert len(list(ET.fromstring(draw("independent", rows)).iter(f"{SVG}title"))) == 1 + 3 * 3 - 1
    assert "|  |" in table(rows)[2]


def test_what_is_missed_stands_on_the_page_and_suites_without_rows_do_not() -> None:
    text, images = drawn(made_up_results("decode-swiglu", "independent"))
    assert list(images) == ["results-decode-swiglu.svg", "results-independent.svg"]
    assert "- fused 1.15" not in text
    assert "- 512x2048x4096" not in text
    assert "Some rows are missing." in text
    assert "Every bar is met." in text


def test_another_cards_gains_are_a_column_where_it_has_the_row(tmp_path: Path) -> None:
    here, there = made_up_results("independent"), made_up_results("independent")
    there["meta"]["gpu"], there["rows"] = "NVIDIA H100 80GB HBM3", there["rows"][:1]
    there["rows"][0]["verdict_speedup"] = 1.234
    for folder, results in (("h200", here), ("h100", there), ("simulated-h200", here)):
        (tmp_path / "results" / folder).mkdir(parents=True)
        (tmp_path / "results" / folder / "pairs.json").write_text(json.dumps(results))
    text, _ = drawn(here, others_beside(tmp_path / "results/h200/pairs.json"))
    head, _, first, second, _ = (line for line in text.splitlines() if line.startswith("|"))
    assert head.endswith("| reference | on an H100 |")
    assert first.endswith("| 1.234 |")
    assert second.endswith("|  |")
    assert "verdict on an H100 in 1 rows 1.234" in text
    assert "*On an H100* is the verdict's gain there: NVIDIA H100 80GB HBM3" in text


def test_the_page_is_redrawn_between_its_marks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "results.md"
    page.write_text(f"words\n\n{BEGIN}\n\nold\n\n{END}\n\nmore words\n")
    results = tmp_path / "results" / "h200" / "pairs.json"  # other cards' files are in sibling folders
    results.parent.mkdir(parents=True)
    results.write_text(json.dumps(made_up_results("independent")))
    monkeypatch.setattr(sys, "argv", ["pairs_page", "--results", str(results), "--docs", str(tmp_path)])
    pairs_page.main()
    once = page.read_text()
    pairs_page.main()
    assert page.read_text() == once
    assert once.startswith("words\n")
    assert once.endswith(f"{END}\n\nmore words\n")
    assert "old" not in once
    assert (tmp_path / "results-independent.svg").exists()


def test_the_committed_page_has_its_marks(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "docs/results.md").read_text()
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert text.index(BEGIN) < text.index(END)
