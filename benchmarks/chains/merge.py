"""Merges the rows of several runs into one file; each row has the program and the date of its measurement.

python -m benchmarks.chains.merge FILE [FILE ...] --out benchmarks/results/h100/chains.json
    [--winners FILE ... --shipped tuner/winners/h100.json]

A row comes from its latest job, whatever the result and the order of the files. Its `jobs` are all its jobs, to show
how they differ. The last file's winners are kept. A time of torch.compile, measured with the library, stays in the row
if a later job did not request one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.chains.results import summary_of
from benchmarks.chains.rows import ROWS
from benchmarks.common.merging import parser_of_files
from benchmarks.common.report import without_folders, write_merged
from benchmarks.common.winners import merge_winners
from tuner.core.schedule.plan_kinds import PlanKind

#: Fields of a row that describe its run.
_OF_RUN = ("commit", "date", "kernel_version")
#: Fields of a row with torch.compile's time.
_OF_TORCH = ("torch_compile_us", "torch_over_library", "torch_is_library", "torch_commit")

Json = dict[str, Any]


def merged(reports: Sequence[Json]) -> Json:
    """One report, with its rows in the benchmark's order.

    Raises:
        ValueError: the reports are from several cards.
    """
    if len({report["meta"]["gpu"] for report in reports}) > 1:
        raise ValueError("a merged file has rows of only one model of card")
    jobs, commands = dict[str, list[Json]](), dict[str, None]()
    for report in reports:
        meta = report["meta"]
        commands[without_folders(meta["command"])] = None
        for row in report["rows"]:
            own = {of_run: meta[of_run] for of_run in _OF_RUN} | row
            jobs.setdefault(f"{row['chain']}/m{row['m']}", []).append(own)
    rows = [last_of(jobs[one.name]) for one in ROWS if one.name in jobs]
    of_all = {"complete": len(rows) == len(ROWS), "chains": summary_of(rows), "command": "; ".join(commands)}
    return {"meta": reports[-1]["meta"] | of_all, "rows": rows}


def last_of(rows: Sequence[Json]) -> Json:
    """The row of the latest job, with all jobs; if that job has several rows, the last of `rows`, which may have
    torch.compile's time. That time is null if it was not measured."""
    in_time = sorted(rows, key=lambda row: datetime.fromisoformat(row["date"]))
    row = in_time[-1]
    for before in reversed(in_time):
        row = with_torch(row, before)
    jobs = {job["date"]: job for one in in_time for job in (*one.get("jobs", ()), _job_of(one))}
    in_order = [jobs[date] for date in sorted(jobs, key=datetime.fromisoformat)]
    return {"torch_compile_us": None} | row | {"jobs": in_order}


def _job_of(row: Json) -> Json:
    """The figures for comparing jobs: the time of our fastest kernel; the verdict over the vendor's library, since not
    all jobs have torch.compile; and torch.compile's time over the vendor's, null if it was not tried."""
    ours = [time_us for kind, time_us in row["kind_us"].items() if kind != PlanKind.LIBRARY]
    of_torch = row.get("torch_over_library")
    figures = {
        "fastest_us": min(ours),
        "over_vendor_library": round(row["verdict_speedup"] / min(1.0, of_torch or 1.0), 4),
        "torch_over_library": None if "torch_beside" in row else of_torch,
    }
    return {name: row[name] for name in ("date", "commit", "trials")} | figures


def with_torch(row: Json, before: Json) -> Json:
    """A row that was measured again, with torch.compile's time and date from the job before it. If that was faster than
    the library, the verdict is relative to it."""
    if row.get("torch_compile_us") is not None or before.get("torch_compile_us") is None:
        return row
    over_torch = round(row["verdict_speedup"] * min(1.0, before["torch_over_library"]), 4)
    taken = {name: before[name] for name in _OF_TORCH if name in before}
    return row | taken | {"verdict_speedup": over_torch, "torch_beside": before.get("torch_beside", before["date"])}


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads all files, then writes one, and the winners."""
    parser = parser_of_files(__doc__)
    parser.add_argument("--winners", nargs="*", type=Path, default=[], help="of the same runs")
    parser.add_argument("--shipped", type=Path, help="the file to write to")
    options = parser.parse_args(arguments)
    report = merged([json.loads(path.read_text()) for path in options.files])
    write_merged(report, options.out)
    if options.winners:
        merge_winners(options.shipped, options.winners)
    print(json.dumps(report["meta"]["chains"], indent=1))


if __name__ == "__main__":
    main()
