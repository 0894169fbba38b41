"""A results file that a program writes row by row, and continues in later runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.called import R, called
from benchmarks.common.jobs import Jobs
from benchmarks.common.report import machine_of, rows_of_this_build, write_report


class Found:
    """The rows that this build has measured on this card."""

    def __init__(self, jobs: Jobs, path: Path) -> None:
        """Reads the existing rows of `path`."""
        self.path, self._machine = path, machine_of(jobs.environment)
        self.lines = rows_of_this_build(path, self._machine)

    def missing(self, rows: Sequence[R], names: Sequence[str]) -> list[R]:
        """The rows with the given names, by default all, that have no line yet."""
        done = {line["row"] for line in self.lines}
        return [row for row in called(rows, names) if row.name not in done]

    def add(self, line: dict[str, Any], said: Sequence[str]) -> None:
        """Writes a line, and prints some of its columns."""
        self.lines.append(line)
        self.write()
        print(line["row"], json.dumps({name: line.get(name) for name in said}), flush=True)

    def write(self) -> None:
        """Writes all lines."""
        write_report(self.path, self.lines, self._machine)
