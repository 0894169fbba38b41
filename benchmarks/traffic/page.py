"""Draws the table of docs/traffic.md from benchmarks/results/h200/traffic.json.

python -m benchmarks.traffic.page [--results benchmarks/results/h200/traffic.json] [--docs docs]

Only the text between the page's two marks is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_line, redraw, results_of
from benchmarks.traffic.measure import L2_SECTORS, SECTOR_BYTES, SM_BYTES
from tuner.core.insight.derived_counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES

Row = dict[str, Any]

BEGIN, END = "<!-- drawn by benchmarks/traffic/page.py -->", "<!-- end of what is drawn -->"
#: Names on the page.
NAMES = {
    "pebbles": "pebbles",
    "chimera": "Chimera",
    "welder": "Welder",
    "optimus": "Optimus",
    "maestro": "MAESTRO",
    "tileflow": "TileFlow",
    "simulator": "ours",
}
WORDS = {"row_major": "row-major", "best": "best"}


def dram_bytes(row: Row) -> float | None:
    """Counted bytes read and written; None if they were not counted."""
    read, written = (row["counters"].get(name) for name in (DRAM_READ_BYTES, DRAM_WRITE_BYTES))
    return None if read is None or written is None else float(read + written)


def sm_bytes(row: Row) -> float | None:
    """Counted bytes that the SMs requested by TMA."""
    asked = row["counters"].get(SM_BYTES)
    return None if asked is None else float(asked)


def l2_bytes(row: Row) -> float | None:
    """Counted bytes that the L2 read for the SMs' requests by TMA."""
    sectors = row["counters"].get(L2_SECTORS)
    return None if sectors is None else float(sectors) * SECTOR_BYTES


def table(rows: Sequence[Row], boundary: str, measured: dict[str, Any]) -> list[str]:
    """Markdown: megabytes at a boundary; `measured` has columns of counters."""
    models = [name for name in NAMES if any(row["models"][name][boundary] is not None for row in rows)]
    heads = ["pair", "rows", "order", *measured, *(NAMES[name] for name in models)]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in rows:
        counted = [_megabytes(take(row)) for take in measured.values()]
        said = [_megabytes(row["models"][name][boundary]) for name in models]
        lines.append("| " + " | ".join([row["pair"], str(row["m"]), WORDS[row["order"]], *counted, *said]) + " |")
    take = next(iter(measured.values()))
    errors = [_off([(row["models"][name][boundary], take(row)) for row in rows]) for name in models]
    lines.append("| off by, on average | | | " + " | ".join([*[""] * len(measured), *errors]) + " |")
    return lines


def _off(pairs: Sequence[tuple[float | None, float | None]]) -> str:
    """The geometric mean of the error factors, too high or too low."""
    ratios = [said / counted for said, counted in pairs if said and counted]
    return f"{geometric_mean([max(ratio, 1 / ratio) for ratio in ratios]):.2f}x" if ratios else "–"


def _megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.0f}"


def drawn(results: dict[str, Any]) -> str:
    """The part of the page that is drawn."""
    rows = results["rows"]
    lines = [
        f"{machine_line(results['meta'])} Made by `{results['meta']['command']}`.",
        "",
        "### Between the DRAM and the chip, MB",
        "",
        *table(rows, "dram_bytes", {"counted": dram_bytes}),
        "",
        "### Between the L2 and the SMs, MB",
        "",
        *table(rows, "l2_bytes", {"delivered to the SMs": sm_bytes, "read from the L2": l2_bytes}),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Redraws the page."""
    arguments = parser_of(__doc__, "docs", results=Path("benchmarks/results/h200/traffic.json")).parse_args()
    redraw(arguments.docs / "traffic.md", drawn(results_of(arguments.results, "bench-traffic")), BEGIN, END)


if __name__ == "__main__":
    main()
