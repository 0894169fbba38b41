"""The compatibility page has the program's version numbers, and the changelog lists the current version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tuner
from tuner.core.plan.table.header import VERSION
from tuner.packs.records import VERSION as PACK_VERSION
from tuner.store.admin.migrate import migrations_dir
from tuner.versions import MANIFEST_FORMAT, WIRE_HEADER, WIRE_VERSION


@pytest.fixture(scope="module")
def rows(root: Path) -> dict[str, list[str]]:
    """The first table of the page: first cell -> other cells."""
    table = (root / "docs/compatibility.md").read_text().split("\n\n")[2]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: row[1:] for row in cells}


def test_the_page_has_the_numbers_of_the_program(rows: dict[str, list[str]]) -> None:
    revision = max(path.name[:4] for path in migrations_dir().glob("versions/0*.py"))
    assert {what: number for what, (number, *_) in rows.items()} == {
        "the program": f"`{tuner.__version__}`",
        "the wire format": str(WIRE_VERSION),
        "an artifact's manifest": str(MANIFEST_FORMAT),
        "a pack's index": str(PACK_VERSION),
        "a plan's words": str(VERSION),
        "the database": revision,
        "the kernels": "a digest",
    }
    assert WIRE_HEADER in rows["the wire format"][1]


def test_every_format_of_the_manifest_has_its_row(root: Path) -> None:
    section = (root / "docs/compatibility.md").read_text().split("\n## The manifest\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == [str(n) for n in range(MANIFEST_FORMAT, 0, -1)]


def test_the_changelog_has_the_version_on_top_and_each_once(root: Path) -> None:
    versions = re.findall(
        r"^## (\S+), (?:unreleased|\d{4}-\d\d-\d\d)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert versions[0] == tuner.__version__
    assert len(versions) == len(set(versions))


def test_the_example_that_runs_a_kernel_reads_the_newest_manifest(root: Path) -> None:
    assert f"NEWEST_FORMAT = {MANIFEST_FORMAT}\n" in (root / "examples/run_artifact.py").read_text()
