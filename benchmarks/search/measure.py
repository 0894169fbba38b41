"""Whether a search is as fast and as good as it must be: jobs of the service on this machine's GPU.

python -m benchmarks.search.measure [--part burst ...] [--task own/64 ...] [--seconds 540] [--samples FILE.jsonl.gz]

Parts, in the order of their worth: burst, ladder, sustained, long, own, seeds, more, priors. A part has a service of
its own with an empty folder, so no job knows of another part's. A job of burst, sustained, long, more or ladder begins
with no cubin. What a contest compares was timed in the rounds of one finals.

The file is written after every task. What it has of the same card and kernel stays, so a run may be cut, and go on:
after `--seconds` nothing is begun that is not expected to fit. `--again` runs what is there anew. `--samples` keeps
every trial with its samples and its seconds by stage.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.common.report import commit, machine_of, results_file, write_report
from benchmarks.common.workbench import Watch, message_of
from benchmarks.search.bench import Bench, open_bench
from benchmarks.search.judge import judge
from benchmarks.search.tasks import Entry, Task, all_tasks
from tuner.errors import InvalidInput

#: What a service takes until its first job can begin, and to end, seconds.
OPENING_S = 15.0
#: What of a machine must be the same, so that entries stay.
_SAME = ("gpu", "driver", "kernel_version")


class Table:
    """The file: entries by name, and the checks that follow from them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept = json.loads(path.read_text()) if path.exists() else {"meta": {}, "jobs": []}
        self.entries: dict[str, Entry] = {}
        self._machine: dict[str, Any] = {}

    def open(self, machine: dict[str, Any], *, simulated: bool) -> None:
        """Takes over what the file has of this machine.

        Raises:
            InvalidInput: it is of a card, and this machine simulates.
        """
        before = self._kept["meta"]
        if simulated and before and not before.get("simulated"):
            raise InvalidInput(
                "out", f"{self.path} is of {before.get('gpu')}", "give a simulated run a file of its own"
            )
        self._machine = machine | {"simulated": simulated}
        if all(before.get(name) == machine[name] for name in _SAME):
            self.entries = {job["job"]: job for job in self._kept["jobs"]} | self.entries

    def names(self) -> set[str]:
        """What the file has, whatever it is of."""
        return {job["job"] for job in self._kept["jobs"]}

    def put(self, name: str, entry: Entry) -> None:
        """Keeps an entry and writes the file."""
        where = {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.entries[name] = {"job": name, **entry, **where}
        order = {task.name: place for place, task in enumerate(all_tasks())}
        jobs = sorted(self.entries.values(), key=lambda job: order.get(job["job"], len(order)))
        write_report(self.path, judge(self.entries), self._machine, jobs=jobs)


def run_tasks(
    tasks: Sequence[Task], table: Table, gpu: str, limit_s: float, *, again: bool = False, samples: Path | None = None
) -> list[str]:
    """Runs the parts one after the other; the names of the tasks that failed, each with its reason."""
    watch, failures = Watch(), list[str]()
    for part, members in groupby(tasks, key=lambda task: task.part):
        wanted = [task for task in members if again or task.name not in table.entries]
        if not wanted or watch.seconds + OPENING_S + min(task.seconds for task in wanted) > limit_s:
            continue
        print(f"{watch.seconds} s: {part}", flush=True)
        with open_bench(gpu, samples) as bench:
            table.open(machine_of(bench.jobs.environment), simulated=bench.jobs.environment.simulated)
            for task in wanted:
                if task.name in table.entries and not again:  # the file has it, of this very machine
                    continue
                if watch.seconds + task.seconds > limit_s:
                    print(f"{watch.seconds} s: {task.name} is left, it takes about {task.seconds:g} s", flush=True)
                    continue
                if failure := _run(task, bench, table, watch):
                    failures.append(failure)
    return failures


def _run(task: Task, bench: Bench, table: Table, watch: Watch) -> str:
    """Runs one task and keeps its entry; why it failed, empty where it did not."""
    missing = [name for name in task.needs if name not in table.entries]
    if missing:
        print(f"{watch.seconds} s: {task.name} needs {', '.join(missing)} first", flush=True)
        return ""
    own = Watch()
    try:
        entry = task.run(bench, table.entries)
    except Exception as error:  # whatever it is, the other tasks may come through
        print(f"{watch.seconds} s: {task.name} FAILED: {message_of(error)}", flush=True)
        return f"{task.name}: {message_of(error)}"
    table.put(task.name, entry | {"wall_s": own.seconds})
    print(f"{watch.seconds} s: {task.name} took {own.seconds} s: {_line(entry)}", flush=True)
    return ""


def _line(entry: Entry) -> str:
    """The figures of an entry that one wants to see at once."""
    names = ("job_s", "batch_s", "search_s", "finals_s", "card_waits_for_builds_s", "card_idle_s", "card_share", "loss")
    figures = [f"{name} {entry[name]:.3g}" for name in names if entry.get(name) is not None]
    return ", ".join([*figures, *([entry["verdict"]] if "verdict" in entry else []), *entry.get("reasons", [])])


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = all_tasks()
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--part", action="append", choices=list(dict.fromkeys(task.part for task in tasks)))
    parser.add_argument("--task", action="append", help="one entry, e.g. own/64")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing that does not fit")
    parser.add_argument("--again", action="store_true", help="run what the file has anew")
    parser.add_argument("--list", action="store_true", help="only say what there is, and its expected seconds")
    parser.add_argument("--samples", type=Path, help="a file of lines, under gzip, one a job, to which is added")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/search.json")
    options = parser.parse_args(arguments)
    chosen = [
        task
        for task in tasks
        if (not options.part or task.part in options.part) and (not options.task or task.name in options.task)
    ]
    if not chosen:
        sys.exit(f"no entry is called so; there are: {', '.join(task.name for task in tasks)}")
    path = options.out or results_file("h200" if options.gpu == "auto" else options.gpu, "search")
    table = Table(path)
    if options.list:
        for task in chosen:
            print(f"{task.name}: {task.seconds:g} s{', kept' if task.name in table.names() else ''}")
        return
    failures = run_tasks(chosen, table, options.gpu, options.seconds, again=options.again, samples=options.samples)
    for row in judge(table.entries):
        print(json.dumps({name: row.get(name) for name in ("check", "value", "bar", "holds", "of", "reason")}))
    if failures:
        sys.exit("\n".join(["failed:", *failures]))


if __name__ == "__main__":
    main()
