"""Merges rows of several runs into one file; each row was measured with its own library, and has its date and origin.

If a row occurs several times, the one in the last file is kept.

python -m benchmarks.pairs.merge --out benchmarks/results/h100/pairs.json FILE [FILE ...]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common import merging
from benchmarks.common.rows import ROWS, SUITES
from benchmarks.pairs.results import name_of
from benchmarks.pairs.summary import summarise


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report, with the suite figures of all its rows.

    Raises:
        ValueError: a row is not in the benchmark.
    """
    report = merging.merged(reports, [row.name for row in ROWS], name_of)
    report["meta"]["suites"] = {suite: summarise(suite, report["rows"]) for suite in SUITES}
    return report


if __name__ == "__main__":
    merging.run(__doc__, merged)
