"""The results file of chains: one row per chain and m; existing rows of this commit and kernel are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chains.rows import BARS, DECODE_MS, EACH_OTHER, ROWS, ChainRow
from benchmarks.common.report import rows_of_this_build, write_report


class Results:
    """Rows by name, including existing ones."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self.path, self._machine = path, machine
        self._rows = {f"{row['chain']}/m{row['m']}": row for row in rows_of_this_build(path, machine)}

    def get(self, row: ChainRow) -> dict[str, Any] | None:
        """The existing row, if there is one."""
        return self._rows.get(row.name)

    def put(self, row: ChainRow, figures: dict[str, Any]) -> None:
        """Adds or replaces a row and writes the file."""
        self._rows[row.name] = figures
        ordered = [self._rows[one.name] for one in ROWS if one.name in self._rows]
        complete = len(ordered) == len(ROWS)
        write_report(self.path, ordered, self._machine | {"complete": complete, "chains": summary_of(ordered)})


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of each chain, and its target."""
    found: dict[str, Any] = {}
    for chain, bars in BARS.items():
        own = {row["m"]: row for row in rows if row["chain"] == chain}
        few = [own[m]["verdict_speedup"] for m in DECODE_MS if m in own]
        over_fastest = [_over_fastest(own[m]) for m in DECODE_MS if m in own]
        others = [row["verdict_speedup"] for m, row in own.items() if m not in DECODE_MS]
        found[chain] = {
            "mean": _mean(few),
            "mean_over_fastest_torch": _mean(over_fastest),
            "mean_bar": bars.mean,
            "least": min(few, default=None),
            "each_bar": bars.each,
            "over_reference": {
                m: own[m]["over_reference"] for m in bars.over_reference if "over_reference" in own.get(m, {})
            },
            "over_reference_bars": bars.over_reference,
            "least_of_many_rows": min(others, default=None),
            "many_rows_bar": EACH_OTHER,
        }
    return found


def _mean(speedups: Sequence[float]) -> float | None:
    return round(math.prod(speedups) ** (1 / len(speedups)), 4) if speedups else None


def _over_fastest(row: dict[str, Any]) -> float:
    """The verdict relative to torch.compile's fastest time in any job of the row, if that is faster than the vendor's
    library, since at m = 1 that time varies between compilations."""
    if not row.get("jobs"):
        return float(row["verdict_speedup"])
    of_torch = [job["torch_over_library"] or 1.0 for job in row["jobs"]]
    return float(row["jobs"][-1]["over_vendor_library"] * min(1.0, *of_torch))
