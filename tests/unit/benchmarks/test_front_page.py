from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.rows import ROWS
from benchmarks.pairs import front
from benchmarks.pairs.front import (
    BEGIN,
    END,
    PICTURED,
    SERIES,
    SHOWN,
    SUITE_WORDS,
    draw,
    drawn,
    lines_of,
    means,
    table,
    title_of,
)
from benchmarks.pairs.results import name_of
from tests.support.repository import ROOT

SVG = "{http://www.w3.org/2000/svg}"
META = {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13.0", "commit": "c" * 40, "date": "2026-01-01T00:00:00+00:00"}


def made_up() -> tuple[dict[str, Any], dict[str, Any]]:
    """Made-up finals of every row, and first jobs of the rows in the picture."""
    rows = [
        {
            "suite": row.suite,
            "pair": row.pair,
            "m": row.m,
            "torch_us": 200.0 + i,
            "kind_us": {"library": 100.0 + i, "fused": 90.0, "fused_pdl": 85.0, "two_launches": 95.0},
            "winner": "fused_pdl",
        }
        for i, row in enumerate(ROWS)
    ]
    firsts = [
        {**row, "job_s": 30.0, "kind_us": {"library": 101.0, "fused": 87.5}} for row in rows if name_of(row) in PICTURED
    ]
    return {"meta": {**META, "complete": True}, "rows": rows}, {"meta": META, "rows": firsts}


def test_every_row_that_is_shown_is_a_row_of_the_suites() -> None:
    names = {row.name for row in ROWS}
    assert {*SHOWN, *PICTURED} - names == set()


def test_the_table_has_pytorch_the_library_and_the_first_job_beside_what_a_long_search_found() -> None:
    pairs, jobs = made_up()
    pairs["rows"][0]["torch_us"] = None
    lines = table(lines_of(SHOWN, pairs, jobs))
    assert len(lines) == 2 + len(SHOWN)
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2] == "| 4096 → 14336 → 4096, ReLU | 1 |  | 100.0 |  | 90.0 | 85.0 | 95.0 | fused pdl |"
    assert "| 87.5 | 90.0 | 85.0 | 95.0 | fused pdl |" in lines[3]


def test_the_means_are_of_what_the_verdict_names_over_the_library_and_over_pytorch() -> None:
    pairs, _ = made_up()
    for row in pairs["rows"]:
        row |= {"torch_us": 170.0, "kind_us": {"library": 102.0, "fused_pdl": 85.0}}
    lines = means(pairs)
    assert len(lines) == 2 + len(SUITE_WORDS)
    assert all("| 1.20 | 2.00 | fused pdl " in line for line in lines[2:])
    for row in pairs["rows"]:
        row["torch_us"] = None
    assert all("| 1.20 |  | fused pdl " in line for line in means(pairs)[2:])


def test_a_bar_is_as_long_as_its_time_and_every_series_has_one() -> None:
    pairs, jobs = made_up()
    root = ET.fromstring(draw(lines_of(PICTURED, pairs, jobs)))
    width = float(root.get("width", "0"))
    bars = [(box, box.find(f"{SVG}title")) for box in root.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    assert len(bars) == len(SERIES) * len(PICTURED)
    scales = set()
    for box, title in bars:
        assert title is not None
        assert title.text is not None
        time_us = float(title.text.rsplit(": ", 1)[1].split()[0])
        assert float(box.get("x", "0")) + float(box.get("width", "0")) < width
        scales.add(round(float(box.get("width", "0")) / time_us, 1))
    assert len(scales) == 1


def test_the_picture_names_the_pair_as_the_table_does() -> None:
    assert title_of(ROWS[0]) == "4096 → 14336 → 4096, ReLU"
    pairs, jobs = made_up()
    assert title_of(ROWS[0]) in draw(lines_of(PICTURED, pairs, jobs))


def test_the_front_page_is_redrawn_between_its_marks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    page.write_text(f"words\n\n{BEGIN}\n\nold\n\n{END}\n\nmore words\n")
    for name, results in zip(("pairs", "first_jobs"), made_up(), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(results))
    monkeypatch.setattr(sys, "argv", ["front", "--results", str(tmp_path), "--root", str(tmp_path)])
    front.main()
    once = page.read_text()
    front.main()
    assert page.read_text() == once
    assert once.startswith("words\n")
    assert once.endswith(f"{END}\n\nmore words\n")
    assert "old" not in once


def test_the_committed_front_page_is_what_the_results_draw() -> None:
    results = (ROOT / f"benchmarks/results/h200/{name}.json" for name in ("pairs", "first_jobs"))
    text, picture = drawn(*(json.loads(path.read_text()) for path in results))
    page = (ROOT / "README.md").read_text()
    assert page.split(BEGIN)[1].split(END)[0].strip() == text.strip()
    assert (ROOT / "docs/front-page.svg").read_text() == picture
