"""The pages are written for engineers who read English as a second language."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.house.prose import comments, num_words, sentences

#: More words than these in a sentence are two facts, or one that nobody follows.
MOST_WORDS = 35
#: What a finding is made of, in this order.
FINDING = ("Question", "Setting", "Table", "Conclusion", "Commit", "Status")
STATUSES = ("adopted", "rejected", "superseded", "open")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr")]
DEVICE_FILES = sorted([*(ROOT / "workers/kernels").rglob("*.cuh"), *(ROOT / "tuner/ops").glob("*/device/*.cuh")])
FINDINGS = sorted(page for page in (ROOT / "docs/findings").glob("*.md") if page.name != "README.md")


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


def sections(page: Path) -> dict[str, str]:
    """Text below each heading of the second level."""
    _, *rest = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    return {heading: text.strip() for heading, _, text in (one.partition("\n") for one in rest)}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_no_sentence_of_a_page_is_long(page: Path) -> None:
    long = [f"{words} words: {one}" for one in sentences(page.read_text()) if (words := num_words(one)) > MOST_WORDS]
    assert long == []


def test_no_sentence_of_a_device_file_is_long() -> None:
    assert DEVICE_FILES
    said = ((page, one) for page in DEVICE_FILES for one in sentences(comments(page.read_text())))
    assert [f"{page.name}: {one}" for page, one in said if num_words(one) > MOST_WORDS] == []


def test_comments_are_read_as_paragraphs_and_code_is_not_read() -> None:
    source = "// One two\n// three. Four.\nint five;  // six\n  // Seven\n"
    assert sentences(comments(source)) == ["One two three.", "Four.", "Seven"]


def test_code_tables_headings_and_quotes_are_no_sentences_and_items_are_apart() -> None:
    page = "# A head\n\nOne `a b c` [two](x.md#y)\nthree. Four, e.g. five!\n\n| a | b |\n\n> said\n\n"
    page += "```\nno\n```\n- six\n- seven\n"
    assert sentences(page) == ["One code two three.", "Four, e\u2024g\u2024 five!", "six", "seven"]
    assert [num_words(one) for one in sentences(page)] == [4, 3, 1, 1]
    assert num_words("4096 → 14336") == 2


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
    assert [(question, status) for question, _, status in rows] == [
        (parts["Question"], parts["Status"].split(maxsplit=1)[0].strip(".,:").lower())
    ]


def test_the_index_names_no_finding_that_is_gone() -> None:
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index())) == {page.name for page in FINDINGS}
    assert len(FINDINGS) >= 12


def test_every_commit_of_a_finding_is_in_the_history() -> None:
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], check=True, capture_output=True, text=True)
    known = subprocess.run([*git, "log", "--format=%H"], check=True, capture_output=True, text=True).stdout.split()
    named = {name for page in FINDINGS for name in re.findall(r"`([0-9a-f]{7,40})`", sections(page)["Commit"])}
    missing = [name for name in sorted(named) if not any(commit.startswith(name) for commit in known)]
    assert missing == [] or shallow.stdout.strip() == "true"


def index() -> str:
    """The findings' table of contents."""
    return (ROOT / "docs/findings/README.md").read_text()
