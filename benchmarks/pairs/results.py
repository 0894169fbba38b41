"""The results file of the pairs: one row per pair and m, from a job's finals; existing rows of this commit and kernel
are kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.finals import figures_of
from benchmarks.common.jobs import Ended
from benchmarks.common.report import rows_of_this_build, write_report
from benchmarks.common.rows import ROWS, SUITES, Row
from benchmarks.pairs.summary import summarise
from tuner.core.problem.workload import WorkloadKind
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured


def row_of(row: Row, ended: Ended) -> dict[str, Any]:
    """The row's figures, all from the job's finals.

    Raises:
        TunerError: there are no times of the library, or none of a fused launch.
    """
    figures = {
        "suite": row.suite,
        "pair": row.pair,
        "m": row.m,
        "regime": ended.job.spec.objective.regime,
        **figures_of(ended),
    }
    if row.workload.kind is WorkloadKind.INDEPENDENT:
        figures |= _library_figures(ended.trials[0])
    return figures


def _library_figures(library: Trial) -> dict[str, float]:
    """The library's times on one stream and on two; the row has the better of both."""
    metrics = library.outcome.metrics if isinstance(library.outcome, Measured) else ()
    return {m.tag: round(m.value, 3) for m in metrics if m.tag.startswith("library_") and m.tag.endswith("_us")}


class Results:
    """The results file: rows by name, including existing ones of this commit and kernel."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self._path, self._machine = path, machine
        self._rows = {name_of(row): row for row in rows_of_this_build(path, machine)}
        self.failures: dict[str, str] = {}

    def num_trials(self, name: str, priors: str) -> int:
        """Trials of the row's job; 0 if there is no such row, or if its job had other priors."""
        row = self._rows.get(name, {})
        return int(row.get("trials", 0)) if row.get("priors") == priors else 0

    def get(self, name: str) -> dict[str, Any] | None:
        """The row of that name, if there is one."""
        return self._rows.get(name)

    def put(self, name: str, row: dict[str, Any]) -> None:
        """Adds or replaces a row and writes the file."""
        self._rows[name] = row
        self.failures.pop(name, None)
        self._write()

    def fail(self, name: str, reason: str) -> None:
        """Records that a row failed; a file without rows is not written."""
        self.failures[name] = reason
        if self._rows:
            self._write()

    def _write(self) -> None:
        rows = [self._rows[one.name] for one in ROWS if one.name in self._rows]
        suites = {suite: summarise(suite, rows) for suite in SUITES}
        complete = len(rows) == len(ROWS)
        meta = {**self._machine, "complete": complete, "failures": self.failures, "suites": suites}
        write_report(self._path, rows, meta)

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Summaries of the suites that have a row."""
        rows = list(self._rows.values())
        return {suite: summarise(suite, rows) for suite in SUITES if any(row["suite"] == suite for row in rows)}


def name_of(row: dict[str, Any]) -> str:
    """The `Row.name` of a row."""
    return f"{row['suite']}/{row['pair']}/m{row['m']}"
