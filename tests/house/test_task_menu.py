"""The task menu of docs/development.md leads to files that exist, and answers what readers are asked."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.repository import ROOT

MENU = (ROOT / "docs/development.md").read_text().split("## Where do I change ...?")[1].split("\n## ")[0]
ROWS = [line for line in MENU.splitlines() if line.startswith("| ") and "| --- |" not in line][1:]
CHANGES = json.loads((ROOT / "tests/house/where_changes_begin.json").read_text())["changes"]
READERS = json.loads((ROOT / "tests/house/where_readers_looked.json").read_text())["readers"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_file_and_folder_that_a_row_names_exists(row: str) -> None:
    named = re.findall(r"`((?:tuner|workers|migrations|tests|docs|examples|benchmarks)/[\w./-]*)`", row)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "task",
    ["plan kind", "dtype", "op", "raster", "engine", "counter", "route", "column", "deadline", "GPU model"],
)
def test_the_menu_has_a_row_for_each_usual_task(task: str) -> None:
    assert [row for row in ROWS if re.search(rf"\b{task}\b", row.split("|")[1])]


@pytest.mark.parametrize("asked", CHANGES, ids=lambda asked: asked["change"])
def test_a_change_that_readers_are_asked_for_begins_in_a_file_that_the_menu_names(asked: dict[str, list[str]]) -> None:
    assert [name for name in asked["files"] if not (ROOT / name).exists()] == []
    assert any(f"`{name}`" in MENU for name in asked["files"])


@pytest.mark.parametrize("answers", READERS)
def test_a_reader_found_where_eleven_of_twelve_changes_begin(answers: dict[str, str]) -> None:
    assert set(answers) == {asked["change"] for asked in CHANGES}
    assert sum(answers[asked["change"]] in asked["files"] for asked in CHANGES) >= 11
