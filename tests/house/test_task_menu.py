"""The task menu of docs/development.md lists files that exist, and all files of the changes that the planted tests
cover."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT

MENU = (ROOT / "docs/development.md").read_text().split("## Where do I change ...?")[1].split("\n## ")[0]
#: Each change with its list of files.
ROWS = [part.split("\n### ")[0] for part in MENU.split("\n#### ")[1:]]
#: Suffixes of the files that are searched for names.
CODE = {".c", ".cpp", ".cu", ".cuh", ".h", ".html", ".js", ".py"}
CHANGES = json.loads((ROOT / "tests/house/files_of_changes.json").read_text())["changes"]


def change_of(row: str) -> str:
    """The change that a row describes: its first cell."""
    return row.split("\n", 1)[0]


def row_of(beginning: str) -> str:
    """The only row that begins with this text."""
    (row,) = [row for row in ROWS if change_of(row).startswith(beginning)]
    return row


def files_of_row(row: str) -> set[str]:
    """Files and folders that a row lists."""
    folders = "tuner|workers|runtime|migrations|tests|docs|examples|benchmarks|deploy"
    return set(re.findall(rf"`((?:{folders})/[\w./-]*|pyproject\.toml)`", row))


def files_in(names: Iterable[str]) -> list[Path]:
    """These files, and those of these folders."""
    places = [ROOT / name for name in names]
    found = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
    return [file for file in found if file.suffix in CODE]


@pytest.mark.parametrize("row", ROWS, ids=change_of)
def test_a_row_begins_with_files_and_each_of_its_items_is_short(row: str) -> None:
    items = row.split("\n- ")[1:]
    assert 2 <= len(items) <= 14
    assert max(map(len, items)) < 650
    assert re.search(r"`(tuner|workers|runtime|deploy)/|`AddedPart`|file `asked`", items[0])


def test_the_programs_of_make_derived_are_named_once_before_all_rows() -> None:
    assert "`make derived`" in MENU.split("\n### ")[0]
    assert [change_of(row) for row in ROWS if "python -m tests.house" in row or "make derived" in row] == []


@pytest.mark.parametrize("row", ROWS, ids=change_of)
def test_every_file_and_folder_that_a_row_names_exists(row: str) -> None:
    assert files_of_row(row)
    assert [name for name in files_of_row(row) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("row", ROWS, ids=change_of)
def test_each_name_in_an_item_occurs_in_the_items_files(row: str) -> None:
    """In those of the row if the item lists none. A file without a folder is in a folder of the row."""
    for item in row.split("\n- ")[1:]:
        files = files_in(files_of_row(item) or files_of_row(row))
        for name in set(re.findall(r"`(\w+)`", item)):
            word = re.compile(rf"(?<!\w){name}(?!\w)")
            assert any(word.search(file.read_text()) for file in files), name
        if modules := set(re.findall(r"`(\w+\.py)`", item)):
            assert modules - {file.name for file in files_in(files_of_row(row))} == set()


@pytest.mark.parametrize(
    "task",
    [
        *("plan kind", "dtype", "op", "raster", "engine", "counter", "route", "column", "deadline", "GPU model"),
        *("dashboard", "log in", "proposes", "`tuner`"),
    ],
)
def test_the_menu_has_a_row_for_each_usual_task(task: str) -> None:
    assert [row for row in ROWS if re.search(rf"(?<!\w){re.escape(task)}(?!\w)", change_of(row))]


@pytest.mark.parametrize("asked", CHANGES, ids=lambda asked: asked["change"])
def test_one_row_of_the_menu_names_all_files_of_a_change(asked: dict[str, Any]) -> None:
    """Those under `if` are needed only in the case that is their key."""
    wanted = {*asked["files"], *(name for names in asked.get("if", {}).values() for name in names)}
    assert [name for name in wanted if not (ROOT / name).exists()] == []
    named = [files_of_row(row) | set(re.findall(r"`(\w+(?:\.py|/))`", row)) for row in ROWS]
    lacking = [{*wanted, *asked.get("in_its_folder", [])} - files for files in named]
    assert set() in lacking, min(lacking, key=len)
