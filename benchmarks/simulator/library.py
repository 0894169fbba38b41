"""How close the simulated GPU's library is to measurements on cards: draws the table of docs/simulator.md.

python -m benchmarks.simulator.library [--results benchmarks/results] [--docs docs]

Needs no GPU. It reads the library's times in the results of pairs, chains and layers. A chain whose library was
torch.compile is left out, since there is no model of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.attention import layer_rows
from benchmarks.chains import rows as chains
from benchmarks.common import rows as pairs
from benchmarks.common.program import parser_of
from benchmarks.common.report import redraw
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.objective import Regime
from tuner.core.problem.workload import Workload
from tuner.workers.simulated.library import library_us

BEGIN, END = "<!-- drawn by benchmarks/simulator/library.py -->", "<!-- end of what is drawn -->"
CARDS = ("h100", "h200")
RESULTS = Path("benchmarks/results")
LAYERS = ("layers", "layers_one_job", "layers_pages")
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A row's library, measured and modelled, microseconds."""

    card: str
    #: The group of the row.
    group: str
    row: str
    measured_us: float
    modelled_us: float

    @property
    def ratio(self) -> float:
        """Modelled over measured."""
        return self.modelled_us / self.measured_us


def compared(results: Path = RESULTS) -> list[Compared]:
    """Every row that a card measured and that the library's model supports."""
    return [one for card in CARDS for one in (*_pairs(results, card), *_chains(results, card), *_layers(results, card))]


def _pairs(results: Path, card: str) -> Iterator[Compared]:
    known = {(row.suite, row.pair, row.m): row for row in pairs.ROWS}
    for found in _rows(results, card, "pairs"):
        row = known[found["suite"], found["pair"], found["m"]]
        group = "pairs, sustained" if found["regime"] == Regime.SUSTAINED else "pairs"
        yield _compared(card, group, row.name, found["kind_us"]["library"], [row.workload])


def _chains(results: Path, card: str) -> Iterator[Compared]:
    known = {row.name: row.workload for row in chains.ROWS}
    for found in _rows(results, card, "chains"):
        if not found.get("torch_is_library"):
            name = f"{found['chain']}/m{found['m']}"
            yield _compared(card, "chains", name, found["kind_us"]["library"], [known[name]])


def _layers(results: Path, card: str) -> Iterator[Compared]:
    known = {row.name: row for row in (*layer_rows.ROWS, *layer_rows.ONE_JOB_ROWS, *layer_rows.STORED_ROWS)}
    for name in LAYERS:
        for found in _rows(results, card, name):
            row = known[found["row"]]
            group = "layers" if row.weights is None else "layers, few bits"
            yield _compared(card, group, row.name, found["library_us"], row.parts)


def _rows(results: Path, card: str, name: str) -> list[Json]:
    path = results / card / f"{name}.json"
    return list(json.loads(path.read_text())["rows"]) if path.is_file() else []


def _compared(card: str, group: str, row: str, measured_us: float, parts: Sequence[Workload]) -> Compared:
    modelled_us = sum(library_us(part, CATALOGUE[card]) for part in parts)
    return Compared(card=card, group=group, row=row, measured_us=measured_us, modelled_us=modelled_us)


def groups(found: Sequence[Compared]) -> dict[tuple[str, str], list[Compared]]:
    """Rows by card and group."""
    by = dict[tuple[str, str], list[Compared]]()
    for one in found:
        by.setdefault((one.card, one.group), []).append(one)
    return by


def mean_ratio(found: Sequence[Compared]) -> float:
    """Geometric mean of modelled time over measured time."""
    return math.exp(fmean(math.log(one.ratio) for one in found))


def mean_error(found: Sequence[Compared]) -> float:
    """The error of a row: the mean absolute logarithm of its ratio."""
    return fmean(abs(math.log(one.ratio)) for one in found)


def drawn(found: Sequence[Compared]) -> str:
    """A line for each card and group."""
    lines = [
        "| card, rows | rows | modelled over measured, mean | from | to | a row is off by |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (card, group), some in groups(found).items():
        ratios = [one.ratio for one in some]
        figures = f"{mean_ratio(some):.2f} | {min(ratios):.2f} | {max(ratios):.2f} | {100 * mean_error(some):.1f} %"
        lines.append(f"| {card}, {group} | {len(some)} | {figures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the command line."""
    options = parser_of(__doc__, "docs", results=RESULTS).parse_args()
    redraw(options.docs / "simulator.md", drawn(compared(options.results)), BEGIN, END)


if __name__ == "__main__":
    main()
