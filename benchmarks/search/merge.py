"""Merges the jobs of several runs into one file and evaluates them together; each job has its date, program and
machine.

python -m benchmarks.search.merge FILE [FILE ...] --out benchmarks/results/h200/search.json

If several files have the same job, the last file's is kept. A contest must still compare times of one card and one run,
so an entry that compares another entry's result is dropped if a later file has the latter without it. A run that
continues from another's file has the same entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common.merging import run
from benchmarks.common.report import without_folders
from benchmarks.search.judge import judge
from benchmarks.search.tasks import all_tasks

#: Fields of a job that describe its run.
_OF_RUN = ("gpu", "driver", "cuda", "kernel_version")
#: The facts of each run in the file.
_RUN = ("commit", "date", "command")

Json = dict[str, Any]


def merged(reports: Sequence[Json]) -> Json:
    """One report, with its jobs in the benchmark's order."""
    found, runs = dict[str, Json](), list[Json]()
    for report in reports:
        meta = report["meta"]
        runs += meta.get("runs") or [{name: without_folders(str(meta[name])) for name in _RUN}]
        jobs = {job["job"]: {name: meta[name] for name in _OF_RUN} | job for job in report["jobs"]}
        anew = {name for name, job in jobs.items() if found.get(name) != job}
        for task in all_tasks():
            if anew.intersection(task.needs):
                found.pop(task.name, None)
        found |= jobs
    places = {task.name: place for place, task in enumerate(all_tasks())}
    in_order = sorted(found.values(), key=lambda job: places.get(job["job"], len(places)))
    rows = judge(found)
    last = {name: value for name, value in reports[-1]["meta"].items() if name != "runs"}
    meta = last | {"command": without_folders(last["command"]), "runs": runs}
    return {"meta": meta, "rows": rows, "jobs": in_order}


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads all files, then writes one."""
    for row in run(__doc__, merged, arguments)["rows"]:
        print({name: row.get(name) for name in ("check", "value", "bar", "holds", "of", "reason")})


if __name__ == "__main__":
    main()
