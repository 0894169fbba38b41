"""Merges the rows of several runs into one file; if a row was measured twice, the last file's is kept.

python -m benchmarks.conv.merge FILE [FILE ...] --out benchmarks/results/h200/conv.json
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

from benchmarks.common.merging import merged, run
from benchmarks.conv.rows import rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads all files, then writes one."""
    order = [row.name for row in rows()]
    run(__doc__, partial(merged, order=order, name_of=itemgetter("row")), arguments)


if __name__ == "__main__":
    main()
