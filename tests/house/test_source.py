"""Rules for every source file."""

from __future__ import annotations

import re
from pathlib import Path

MAX_LINES = 400
SOURCE_SUFFIXES = {".py", ".cuh", ".cu", ".h", ".js", ".css", ".html", ".sh"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".md", ".toml", ".yml", ".yaml", ".svg", ".mako", ".ini", ""}

#: Written in pieces, so that this file passes its own rule.
FORBIDDEN = {
    "a note of unfinished work; finish it, or open an issue": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "a path of somebody's machine": r"(?<![\w.~])/(wo" + r"rk|ro" + r"ot)/",
    "a marker of an unresolved merge conflict": r"^(<{7}|>{7}) ",
}


def test_no_source_or_test_file_is_longer_than_400_lines(repository_files: list[Path], root: Path) -> None:
    sizes = {
        str(path.relative_to(root)): len(path.read_bytes().splitlines())
        for path in repository_files
        if path.suffix in SOURCE_SUFFIXES
    }
    assert {name: lines for name, lines in sizes.items() if lines > MAX_LINES} == {}


def test_no_file_holds_what_belongs_elsewhere(repository_files: list[Path], root: Path) -> None:
    found = [
        f"{path.relative_to(root)}:{number}: {why}"
        for path in repository_files
        if path.suffix in TEXT_SUFFIXES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for why, pattern in FORBIDDEN.items()
        if re.search(pattern, line)
    ]
    assert found == []


def test_every_module_outside_the_tests_says_what_it_is(repository_files: list[Path], root: Path) -> None:
    silent = [
        str(path.relative_to(root))
        for path in repository_files
        if path.suffix == ".py" and "tests" not in path.parts
        if (text := path.read_text()).strip() and not text.startswith(('"""', 'r"""'))
    ]
    assert silent == []
