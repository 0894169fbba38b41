"""Every committed result states where its figures come from."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from pathlib import Path
from statistics import geometric_mean

import pytest

from tests.support.repository import ROOT

META_KEYS = {"gpu", "driver", "cuda", "date", "commit", "command"}
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_result_names_its_machine_its_commit_and_its_command(path: Path) -> None:
    result = json.loads(path.read_text())
    tables = set(result) - {"meta"}
    assert {"rows"} <= tables <= {"rows", "jobs", "schedules"}, "each row has its own figures"
    assert set(result["meta"]) >= META_KEYS
    assert result["meta"]["command"]
    assert len(result["meta"]["commit"]) >= 7
    datetime.datetime.fromisoformat(result["meta"]["date"])
    for table in sorted(tables):
        assert result[table]
        assert all(isinstance(row, dict) and row for row in result[table])
    assert path.parent.parent == RESULTS, "results are in benchmarks/results/<gpu or cpu>/"


def test_every_row_of_the_service_says_what_is_checked_and_whether_it_holds() -> None:
    rows = json.loads((RESULTS / "cpu" / "service.json").read_text())["rows"]
    assert [row for row in rows if not {"check", "value", "bar", "holds"} <= set(row)] == []
    assert len({row["check"] for row in rows}) == len(rows)
    assert [row["check"] for row in rows if (row["bar"] is None) != (row["holds"] is None)] == []


def test_the_front_page_says_of_decode_attention_what_its_rows_say() -> None:
    rows = json.loads((RESULTS / "h200" / "attention_pairs.json").read_text())["rows"]
    alike = [row for row in rows if re.fullmatch(r"\d+", str(row["row"].split("/")[2]))]  # all have the same length
    gains = [row["verdict_speedup"] for row in alike]
    near = [row["verdict_speedup"] for row in alike if row["floor_us"] < 40]
    page = " ".join((ROOT / "README.md").read_text().split())
    far = (
        f"reached {min(gains):.2f} to {max(gains):.2f} times the speed of the library's best pair in {len(alike)} rows"
    )
    least = f"In the {len(near)} rows whose floor is under 40 µs, the minimum was {min(near):.2f}"
    assert f"{far}. {least} and the mean {geometric_mean(near):.2f}" in page


def test_the_front_page_counts_the_verdicts_of_its_suites() -> None:
    rows = json.loads((RESULTS / "h200" / "pairs.json").read_text())["rows"]
    kinds = [row["winner"].replace("_", " ") for row in rows if row["suite"] != "independent"]
    *most, (kind, least) = Counter(kinds).most_common()
    counted = ", ".join(f"{name} in {number}" for name, number in most)
    page = " ".join((ROOT / "README.md").read_text().split())
    said = f"all {len(kinds)} rows of the suites. The verdict is {counted}, and {kind} in {least}."
    assert said in page
