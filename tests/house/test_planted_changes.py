"""Common changes, planted in a copy: the task menu lists all files to edit, and the rest of the program reflects the
changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.house.planted import CHANGES, Change, plant
from tests.house.test_task_menu import files_of_row, row_of
from tests.support.lanes import soak_unless
from tests.support.repository import ROOT, copy_folder

#: The contents of the copy: the program, its documents, and the tests that check consistency.
FOLDERS = ("tuner", "workers", "runtime", "docs", "tests/support", "tests/house")
FILES = ("tests/__init__.py", "pyproject.toml")
#: A change without one of its files.
SHORT = [
    (change, file)
    for change in CHANGES
    for file in sorted({line.file for line in change.lines})
    if len({line.file for line in change.lines}) > 1
]


def copied(to: Path) -> Path:
    """A copy of the program."""
    for folder in FOLDERS:
        copy_folder(folder, to)
    for file in FILES:
        shutil.copy(ROOT / file, to / file)
    return to


def what_is_missed(copy: Path, changes: Iterable[Change]) -> dict[str, str]:
    """For each planted change, the checks that do not reflect it."""
    changes = list(changes)
    where = os.environ | {"PYTHONPATH": str(copy)}
    python = [sys.executable, "-B", "-m"]
    for program in dict.fromkeys(program for change in changes for program in change.programs):
        subprocess.run([*python, program], cwd=copy, env=where, check=True, timeout=120)
    command = [*python, "tests.house.planted", *(change.name for change in changes)]
    ended = subprocess.run(command, cwd=copy, env=where, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, str] = json.loads(ended.stdout)
    return found


# In CI, the next test plants some of them.
@pytest.mark.soak
def test_with_the_files_of_their_rows_all_changes_are_known_everywhere(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    for change in CHANGES:
        plant(change, copy)
    assert what_is_missed(copy, CHANGES) == {change.name: "" for change in CHANGES}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_the_row_of_a_change_names_all_its_files_and_make_derived_writes_the_rest(change: Change) -> None:
    row = row_of(change.row)
    assert {line.file for line in change.lines if line.before} - files_of_row(row) == set()
    folders = {str(Path(line.file).parent) + "/" for line in change.lines if not line.before}
    assert folders - files_of_row(row) == set()
    derived = (ROOT / "Makefile").read_text().split("\nderived:")[1].split("\n\n")[0]
    assert [program for program in change.programs if f"python -m {program}\n" not in f"{derived}\n"] == []


def test_the_row_of_an_axis_names_the_files_in_which_axes_are_planted() -> None:
    """`tests/unit/core/schedule/test_planted_axis.py` plants the axes."""
    assert {"tuner/core/schedule/tiling.py", "tuner/core/schedule/ordering.py"} <= files_of_row(row_of("an axis"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "file"),
    soak_unless(lambda _, one: one[0].name == "a raster" and one[1].startswith("docs/"), SHORT),
    ids=lambda one: one.name if isinstance(one, Change) else one,
)
def test_a_file_that_is_left_out_is_missed(change: Change, file: str, tmp_path: Path) -> None:
    copy = copied(tmp_path)
    others = tuple(line for line in change.lines if line.file != file)
    plant(Change(name=change.name, row=change.row, lines=others, check=change.check), copy)
    try:
        missed = what_is_missed(copy, [change])[change.name]
    except subprocess.CalledProcessError:
        return  # not even the programs start
    assert missed
