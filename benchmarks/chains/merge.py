"""The rows of several runs in one file: each row says by which program it was measured, and when.

python -m benchmarks.chains.merge FILE [FILE ...] --out benchmarks/results/h100/chains.json
    [--winners FILE ... --shipped tuner/winners/h100.json]

A row is that of the job that was measured last, whatever it found and in whatever order the files are named. Its `jobs`
are all jobs of it, so that a reader sees how far they lie apart. Of winners, those of the last file are kept. What
torch.compile took, which was measured beside the library, stays with the row where a later job did not ask for it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.chains.results import summary_of
from benchmarks.chains.rows import ROWS
from benchmarks.common.report import without_folders, write_merged
from benchmarks.common.winners import merge_winners
from tuner.core.schedule.plan_kinds import PlanKind

#: What a row tells of its run.
_OF_RUN = ("commit", "date", "kernel_version")
#: What `torch_compile` adds to a row.
_OF_TORCH = ("torch_compile_us", "torch_over_library", "torch_is_library", "torch_commit")

Json = dict[str, Any]


def merged(reports: Sequence[Json]) -> Json:
    """One report, its rows in the order of the benchmark's.

    Raises:
        ValueError: they are of several cards.
    """
    if len({report["meta"]["gpu"] for report in reports}) > 1:
        raise ValueError("a file has rows of one model of card")
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
    """The row whose job was measured last, with all jobs; of one job's rows the last of `rows`, which may have got what
    torch.compile took. That is null where it was not tried."""
    in_time = sorted(rows, key=lambda row: datetime.fromisoformat(row["date"]))
    row = in_time[-1]
    for before in reversed(in_time):
        row = with_torch(row, before)
    jobs = {job["date"]: job for one in in_time for job in (*one.get("jobs", ()), _job_of(one))}
    in_order = [jobs[date] for date in sorted(jobs, key=datetime.fromisoformat)]
    return {"torch_compile_us": None} | row | {"jobs": in_order}


def _job_of(row: Json) -> Json:
    """What a reader compares jobs by: the time of our fastest, the verdict over the vendor's library, since not all
    jobs have torch.compile beside it, and what that took of the vendor's library; null where it was not tried then."""
    ours = [time_us for kind, time_us in row["kind_us"].items() if kind != PlanKind.LIBRARY]
    of_torch = row.get("torch_over_library")
    figures = {
        "fastest_us": min(ours),
        "over_vendor_library": round(row["verdict_speedup"] / min(1.0, of_torch or 1.0), 4),
        "torch_over_library": None if "torch_beside" in row else of_torch,
    }
    return {name: row[name] for name in ("date", "commit", "trials")} | figures


def with_torch(row: Json, before: Json) -> Json:
    """A row that a search measured again, with what torch.compile took beside the job before it, whose date it says.
    Where that was ahead of the library, the verdict is against it."""
    if row.get("torch_compile_us") is not None or before.get("torch_compile_us") is None:
        return row
    over_torch = round(row["verdict_speedup"] * min(1.0, before["torch_over_library"]), 4)
    taken = {name: before[name] for name in _OF_TORCH if name in before}
    return row | taken | {"verdict_speedup": over_torch, "torch_beside": before.get("torch_beside", before["date"])}


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads all files, then writes one, and the winners."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--winners", nargs="*", type=Path, default=[], help="of the same runs")
    parser.add_argument("--shipped", type=Path, help="the file that takes them over")
    options = parser.parse_args(arguments)
    report = merged([json.loads(path.read_text()) for path in options.files])
    write_merged(report, options.out)
    if options.winners:
        merge_winners(options.shipped, options.winners)
    print(json.dumps(report["meta"]["chains"], indent=1))


if __name__ == "__main__":
    main()
