"""Rows of several runs in one file: each was measured beside its own library, and says when and where.

Of a row that several files have, the one of the last file is kept.

python -m benchmarks.attention.merge --out benchmarks/results/h200/attention_pairs.json FILE [FILE ...]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.report import write_merged

from .rows import rows

#: What a row tells of its run.
_OF_RUN = ("gpu", "driver", "cuda", "kernel_version", "date", "commit")


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads all files, then writes one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    write_merged(merged([json.loads(path.read_text()) for path in options.files]), options.out)


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report, its rows in the order of the benchmark's.

    Raises:
        ValueError: a row that the benchmark does not have.
    """
    found: dict[str, dict[str, Any]] = {}
    for report in reports:
        own = {name: report["meta"].get(name) for name in _OF_RUN}
        found |= {row["row"]: {**row, "run": row.get("run", own)} for row in report["rows"]}
    order = [row.name for row in rows()]
    if unknown := sorted(set(found) - set(order)):
        raise ValueError(f"the benchmark has no row {unknown[0]!r}")
    complete = set(found) == set(order)
    remark = "rows of several runs: each says when and at which commit it was measured"
    meta = {**reports[-1]["meta"], "complete": complete, "remark": remark}
    return {"meta": meta, "rows": [found[name] for name in order if name in found]}


if __name__ == "__main__":
    main()
