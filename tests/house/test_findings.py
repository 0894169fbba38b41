"""Findings have one form, a row in the index, and commits that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

#: The sections of a finding, in this order.
FINDING = ("Question", "Setting", "Table", "Conclusion", "Commit", "Status")
STATUSES = ("adopted", "rejected", "superseded", "open")

ROOT = Path(__file__).parents[2]
FINDINGS = sorted(page for page in (ROOT / "docs/findings").glob("*.md") if page.name != "README.md")


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


def sections(page: Path) -> dict[str, str]:
    """Text below each heading of the second level."""
    _, *rest = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    return {heading: text.strip() for heading, _, text in (one.partition("\n") for one in rest)}


@pytest.mark.parametrize("page", FINDINGS, ids=ids)
def test_every_finding_has_the_one_form(page: Path) -> None:
    parts = sections(page)
    assert tuple(parts) == FINDING
    assert page.read_text().startswith("# ")
    assert parts["Question"].endswith("?")
    assert re.search(r"^\| --- ", parts["Table"], flags=re.MULTILINE)
    assert re.findall(r"`[0-9a-f]{7,40}`", parts["Commit"])
    assert parts["Status"].split(maxsplit=1)[0].strip(".,:").lower() in STATUSES


@pytest.mark.parametrize("page", FINDINGS, ids=ids)
def test_every_finding_has_its_row_in_the_index(page: Path) -> None:
    parts = sections(page)
    rows = re.findall(rf"^\| \[(.*)\]\({re.escape(page.name)}\) \| (.+) \| (\w+) \|$", index(), flags=re.MULTILINE)
    title = page.read_text().split("\n")[0].removeprefix("# ")
    assert [(name, status) for name, _, status in rows] == [
        (title, parts["Status"].split(maxsplit=1)[0].strip(".,:").lower())
    ]


def test_the_index_names_no_finding_that_is_gone() -> None:
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index())) == {page.name for page in FINDINGS}
    assert len(FINDINGS) >= 8


def test_every_commit_of_a_finding_is_in_the_history() -> None:
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], check=True, capture_output=True, text=True)
    known = subprocess.run([*git, "log", "--format=%H"], check=True, capture_output=True, text=True).stdout.split()
    named = {name for page in FINDINGS for name in re.findall(r"`([0-9a-f]{7,40})`", sections(page)["Commit"])}
    named |= set(re.findall(r"`([0-9a-f]{7,40})` \|$", index(), flags=re.MULTILINE))
    missing = [name for name in sorted(named) if not any(commit.startswith(name) for commit in known)]
    assert missing == [] or shallow.stdout.strip() == "true"


def index() -> str:
    """The findings' table of contents."""
    return (ROOT / "docs/findings/README.md").read_text()
