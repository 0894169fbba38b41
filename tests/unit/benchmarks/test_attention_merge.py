"""Rows of several runs of the attention benchmarks in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attention.merge import merged
from benchmarks.attention.rows import rows
from benchmarks.common import merging

NAMES = [row.name for row in rows()]


def report(commit: str, *names: str) -> dict[str, Any]:
    return {"meta": {"commit": commit, "gpu": "a card"}, "rows": [{"row": name, "us": commit} for name in names]}


def test_a_row_says_its_run_and_the_last_file_wins() -> None:
    both = merged([report("first", NAMES[1], NAMES[0]), report("second", NAMES[1])])
    assert [row["row"] for row in both["rows"]] == NAMES[:2]
    assert [row["run"]["commit"] for row in both["rows"]] == ["first", "second"]
    assert [row["us"] for row in both["rows"]] == ["first", "second"]
    assert not both["meta"]["complete"]


def test_a_row_keeps_its_run_when_its_file_is_merged_again() -> None:
    again = merged([merged([report("first", *NAMES)]), report("second", NAMES[0])])
    assert {row["run"]["commit"] for row in again["rows"][1:]} == {"first"}
    assert again["rows"][0]["run"]["commit"] == "second"
    assert again["meta"]["complete"]


def test_a_row_that_is_not_the_benchmarks_is_refused() -> None:
    with pytest.raises(ValueError, match="no row 'llama9/1/512'"):
        merged([report("first", "llama9/1/512")])


def test_files_become_one(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path, name in zip(paths, NAMES, strict=False):
        path.write_text(json.dumps(report("a run", name)))
    merging.run(None, merged, [*map(str, paths), "--out", str(tmp_path / "new" / "all.json")])
    assert len(json.loads((tmp_path / "new" / "all.json").read_text())["rows"]) == len(paths)
