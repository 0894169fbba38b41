"""Rows of several runs of the pair benchmark are merged into one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import merging
from benchmarks.common.rows import ROWS
from benchmarks.pairs.merge import merged
from benchmarks.pairs.shipped_finals import finals_of

SUITE = [row for row in ROWS if row.suite == "decode-plain"]


def report(commit: str, *places: int, library_us: float = 100.0) -> dict[str, Any]:
    kind_us = {"library": library_us, "fused": 50.0}
    figures = {"kind_us": kind_us, "winner": "fused", "verdict": "fused wins", "fused_speedup": 2.0}
    rows = [{"suite": row.suite, "pair": row.pair, "m": row.m, **figures} for row in (SUITE[i] for i in places)]
    meta = {"commit": commit, "gpu": "a card", "kernel_version": f"kernels of {commit}", "date": "today"}
    return {"meta": meta, "rows": rows}


def test_a_row_says_its_run_and_the_last_file_wins() -> None:
    both = merged([report("first", 1, 0), report("second", 1, library_us=90.0)])
    assert [(row["pair"], row["m"]) for row in both["rows"]] == [(row.pair, row.m) for row in SUITE[:2]]
    assert [row["run"]["commit"] for row in both["rows"]] == ["first", "second"]
    assert [row["kind_us"]["library"] for row in both["rows"]] == [100.0, 90.0]
    assert (both["meta"]["suites"]["decode-plain"]["num_rows"], both["meta"]["complete"]) == (2, False)


def test_the_program_says_of_each_row_which_run_it_is_of() -> None:
    again = merged([merged([report("first", 0)]), report("second", 1)])
    found = finals_of(again)
    assert [found[SUITE[i].name]["commit"] for i in range(2)] == ["first", "second"]
    assert found[SUITE[0].name]["kernel_version"] == "kernels of first"


def test_a_row_that_is_not_the_benchmarks_is_refused() -> None:
    unknown = report("first", 0)
    unknown["rows"][0]["m"] = 17
    with pytest.raises(ValueError, match="no row 'decode-plain/llama3-8b/m17'"):
        merged([unknown])


def test_files_become_one(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for place, path in enumerate(paths):
        path.write_text(json.dumps(report("a run", place)))
    merging.run(None, merged, [*map(str, paths), "--out", str(tmp_path / "new" / "all.json")])
    assert len(json.loads((tmp_path / "new" / "all.json").read_text())["rows"]) == len(paths)
