"""CSV: a row per trial, a column per figure and per axis."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from tuner.client.documents.documents import JobDetail, Trial
from tuner.client.exports.axes import axes_of, values_of

#: Columns before those of the axes.
_FIGURES = ("time_us", "library_us", "speedup", "spread", "rel_error", "truncated", "remark")
_WHY = ("stage", "failure", "reason")
_HEAD = (
    "job_id",
    "number",
    "target",
    "simulated",
    "started_at",
    "finished_at",
    "outcome",
    *_FIGURES,
    *_WHY,
    "schedule",
)


def csv_of(job: JobDetail, trials: Sequence[Trial]) -> bytes:
    """The table as UTF-8; missing values are empty cells."""
    axes = list(values_of(trials))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_HEAD, *axes], restval="", lineterminator="\n")
    writer.writeheader()
    for trial in trials:
        outcome = {name: value for name, value in trial["outcome"].items() if name in (*_FIGURES, *_WHY)}
        row = {
            "job_id": job["id"],
            "number": trial["number"],
            "target": job["target"],
            "simulated": trial["simulated"],
            "started_at": trial["started_at"],
            "finished_at": trial["finished_at"],
            "outcome": trial["outcome"]["kind"],
            "schedule": trial["candidate"]["text"],
        }
        writer.writerow(row | outcome | axes_of(trial["candidate"]))
    return text.getvalue().encode()
