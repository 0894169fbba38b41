"""Rows of several runs in one file: each was measured beside its own library, and says when and where.

Of a row that several files have, the one of the last file is kept.

python -m benchmarks.attention.merge --out benchmarks/results/h200/attention_pairs.json FILE [FILE ...]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common import merging

from .rows import rows


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report, its rows in the order of the benchmark's.

    Raises:
        ValueError: a row that the benchmark does not have.
    """
    return merging.merged(reports, [row.name for row in rows()], lambda row: str(row["row"]))


if __name__ == "__main__":
    merging.run(__doc__, merged)
