"""The task menu of docs/development.md names files that exist, and all files of the changes that readers are asked."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.repository import ROOT

MENU = (ROOT / "docs/development.md").read_text().split("## Where do I change ...?")[1].split("\n## ")[0]
ROWS = [line for line in MENU.splitlines() if line.startswith("| ") and "| --- |" not in line][1:]
CHANGES = json.loads((ROOT / "tests/house/files_of_changes.json").read_text())["changes"]


def row_of(beginning: str) -> str:
    """The one row that begins so."""
    (row,) = [row for row in ROWS if row.split("|")[1].strip().startswith(beginning)]
    return row


def files_of_row(row: str) -> set[str]:
    """Files and folders that a row names."""
    folders = "tuner|workers|runtime|migrations|tests|docs|examples|benchmarks|deploy"
    return set(re.findall(rf"`((?:{folders})/[\w./-]*|pyproject\.toml)`", row))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_file_and_folder_that_a_row_names_exists(row: str) -> None:
    assert files_of_row(row)
    assert [name for name in files_of_row(row) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "task",
    ["plan kind", "dtype", "op", "raster", "engine", "counter", "route", "column", "deadline", "GPU model"],
)
def test_the_menu_has_a_row_for_each_usual_task(task: str) -> None:
    assert [row for row in ROWS if re.search(rf"\b{task}\b", row.split("|")[1])]


@pytest.mark.parametrize("asked", CHANGES, ids=lambda asked: asked["change"])
def test_one_row_of_the_menu_names_all_files_of_a_change(asked: dict[str, list[str]]) -> None:
    assert [name for name in asked["files"] if not (ROOT / name).exists()] == []
    named = [files_of_row(row) | set(re.findall(r"`(\w+(?:\.py|/))`", row)) for row in ROWS]
    lacking = [{*asked["files"], *asked.get("in_its_folder", [])} - files for files in named]
    assert set() in lacking, min(lacking, key=len)
