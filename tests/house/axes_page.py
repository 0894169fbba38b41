"""Generates rows of `docs/schedule-space.md` from the records of the axes.

``python -m tests.house.axes_page`` writes them into the page: it replaces the row of the same axis, or appends to its
table. Axes whose record has no documentation have rows that are written by hand. It also writes
`docs/schedule-file.schema.json`.
"""

from __future__ import annotations

import json
from pathlib import Path

from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.ordering import Ordering
from tuner.core.schedule.tiling import Tiling
from tuner.schedule_files.schema import file_schema

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "schedule-space.md"
SCHEMA = DOCS / "schedule-file.schema.json"
#: The records whose axes are rows of the page, by the word in the rows' second column.
TABLES = {"tiling": Tiling, "ordering": Ordering}


def drawn(text: str) -> str:
    """Returns the page `text` with the generated rows."""
    lines = text.splitlines()
    for of, kind in TABLES.items():
        for name, one in axes_of(kind).items():
            if not one.meaning:
                continue
            head = f"| `{name}` | {of} |"
            row = f"{head} {one.values_in_words} | {one.meaning} |"
            found = [number for number, line in enumerate(lines) if line.startswith(head)]
            if found:
                lines[found[0]] = row
            else:
                last = max(number for number, line in enumerate(lines) if line.split("|")[2:3] == [f" {of} "])
                lines.insert(last + 1, row)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
    SCHEMA.write_text(json.dumps(file_schema(), indent=1) + "\n")
