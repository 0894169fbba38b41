"""Merges rows of several runs into one file; each row was measured with its own library, and has its date and
origin."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.report import write_merged

Json = dict[str, Any]

#: Fields of a row that describe its run.
_OF_RUN = ("gpu", "driver", "cuda", "kernel_version", "date", "commit", "command")
_REMARK = "rows of several runs: each has its date and commit"


def parser_of_files(description: str | None) -> argparse.ArgumentParser:
    """A parser for the files to read and the file to write."""
    parser = parser_of(description)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def run(
    description: str | None, merge: Callable[[Sequence[Json]], Json], arguments: Sequence[str] | None = None
) -> Json:
    """Reads all files named on the command line, then writes one, which is returned."""
    options = parser_of_files(description).parse_args(arguments)
    report = merge([json.loads(path.read_text()) for path in options.files])
    write_merged(report, options.out)
    return report


def merged(reports: Sequence[Json], order: Sequence[str], name_of: Callable[[Json], str]) -> Json:
    """One report, with its rows in the order of `order`. If a row occurs several times, the last one is kept.

    Raises:
        ValueError: a row is not in the benchmark.
    """
    found: dict[str, Json] = {}
    for report in reports:
        own = {name: report["meta"].get(name) for name in _OF_RUN}
        found |= {name_of(row): {**row, "run": row.get("run", own)} for row in report["rows"]}
    if unknown := sorted(set(found) - set(order)):
        raise ValueError(f"the benchmark has no row {unknown[0]!r}")
    meta = {**reports[-1]["meta"], "complete": set(found) == set(order), "remark": _REMARK}
    return {"meta": meta, "rows": [found[name] for name in order if name in found]}
