"""The result of tuning a pair: the API's documents, the kernel, and how they are displayed."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from tuner.client.delivery.artifact import Artifact
from tuner.client.delivery.files import check_places, place_below, write_atomically
from tuner.client.delivery.output import plain_console, table_width
from tuner.client.documents.documents import BaselineTime, Best, FinalRow, JobDetail, Trial
from tuner.client.terminal import render
from tuner.client.terminal.study import study_table
from tuner.python.chart import chart

#: Columns of a printed table; a narrower terminal has fewer.
_MOST_COLUMNS = 140
_HEADERS = ("plan kind", "time", "speed-up", "95 % interval", "schedule")


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """A finished job. Printed, it is a table; a notebook shows it with the chart of its trials."""

    #: As returned by `GET /jobs/{id}`.
    job: JobDetail
    #: As returned by `GET /jobs/{id}/best`.
    best: Best
    #: As listed by `GET /jobs/{id}/trials`.
    trials: tuple[Trial, ...]
    #: Our fastest kernel, every byte checked; None if none was measured in the finals.
    artifact: Artifact | None
    #: As returned by `GET /jobs/{id}/study`; None if the schedules came from a search.
    study: Mapping[str, Any] | None = None

    @property
    def verdict(self) -> str:
        """`fused wins`, `tie` or `do not fuse`."""
        return self.best["verdict"]

    @property
    def winner(self) -> FinalRow:
        """The winning plan kind's row of the finals."""
        return self.best["finals"][self.best["winner_row"]]

    @property
    def simulated(self) -> bool:
        """Whether no card was involved: then the times are simulated."""
        return self.best["simulated"]

    def save(self, folder: str | Path) -> list[Path]:
        """Writes the kernel's files into a folder: source, plan, manifest and, unless simulated, cubin.

        It is our fastest kernel, even if the library won; `verdict` says whether to use it.

        Raises:
            ValueError: there is no kernel.
            Refused: a file would be outside the folder, or where a folder is.
        """
        if self.artifact is None:
            raise ValueError(f"{self.job['id']} has no kernel: no generated kernel was measured in the finals")
        places = {place_below(Path(folder), name): content for name, content in self.artifact.files.items()}
        check_places(places)
        for place, content in places.items():
            write_atomically(place, content)
        return [*places]

    def __repr__(self) -> str:
        winner = self.winner
        return (
            f"<Result {self.job['id']}: {render.headline(self.best)}, {render.microseconds(winner['time_us'])}"
            f"{render.mark(self.simulated)}>"
        )

    def __str__(self) -> str:
        width = min(table_width(), _MOST_COLUMNS)
        console = plain_console(file=io.StringIO(), width=width)
        with console.capture() as captured:
            console.print(study_table(self.study, width) if self.study else render.results_table(self.best, width))
            for one in self.best["baselines"] if self.study else ():
                console.print(f"{one['name']}: {render.microseconds(one['time_us'])}, {render.own_program_words(one)}")
        return captured.get()

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in _HEADERS)
        rows = "".join(self._row(index, row) for index, row in enumerate(self.best["finals"]))
        rows += "".join(map(_own_row, self.best["baselines"]))
        title = f"{self.best['workload']} on {self.best['target']}{render.mark(self.simulated)}"
        return (
            f"<div><p><strong>{escape(title)}</strong></p>"
            f"{chart(self.trials, self.job['library_us'], self.simulated)}"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{escape(render.verdict_line(self.best))}</p></div>"
        )

    def _row(self, index: int, row: FinalRow) -> str:
        interval = row["speedup_ci95"]
        cells = (
            render.words(row["candidate"]["plan_kind"]) + render.mark(self.simulated),
            render.microseconds(row["time_us"]),
            render.ratio(row["speedup"]),
            "–" if interval is None else f"{interval[0]:.3f}–{interval[1]:.3f}",
            row["reason"] or row["candidate"]["text"] or "the vendor's own",
        )
        weight = " style='font-weight:bold'" if index == self.best["winner_row"] else ""
        return f"<tr{weight}>{_cells(cells)}</tr>"


def _own_row(one: BaselineTime) -> str:
    interval = one["speedup_ci95"]
    cells = (
        one["name"],
        render.microseconds(one["time_us"]),
        render.ratio(one["speedup"]),
        "–" if interval is None else f"{interval[0]:.3f}–{interval[1]:.3f}",
        render.own_program_words(one),
    )
    return f"<tr>{_cells(cells)}</tr>"


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in cells)
