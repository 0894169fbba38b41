"""Whether a search is as fast and as good as required: jobs of the service on this machine's GPU.

python -m benchmarks.search.measure [--part burst ...] [--task own/64 ...] [--seconds 540]

Named tasks come first, then those of the named parts. Parts, in order of importance: burst, long, sustained, more,
priors, seeds, ladder, own. A part has a separate service with an empty folder, so jobs of different parts are
independent. A job of burst, sustained, long, more or ladder starts without cubins. A contest compares times from the
rounds of one finals.

The file is written after every task. Its entries of the same card and kernel stay, so an interrupted run continues:
after `--seconds` no task starts that is not expected to fit. `--again` repeats existing entries.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common.program import Watch, parser_of
from benchmarks.common.report import commit, machine_of, results_file, write_report
from benchmarks.common.workbench import message_of
from benchmarks.search.bench import Card, open_card
from benchmarks.search.judge import judge
from benchmarks.search.tasks import Entry, Task, all_tasks
from tuner.core.trial.evaluator import Environment
from tuner.errors import InvalidInput

#: Properties of the machine that must match for existing entries to be kept.
_SAME = ("gpu", "driver", "kernel_version")


class Table:
    """The file: entries by name, and the checks that follow from them."""

    def __init__(self, path: Path, anew: Collection[str] = ()) -> None:
        """Reads `path`, without the entries that are to be measured `anew`."""
        self.path = path
        self._anew = frozenset(anew)
        self._kept = json.loads(path.read_text()) if path.exists() else {"meta": {}, "jobs": []}
        self.entries: dict[str, Entry] = {}
        self._machine: dict[str, Any] = {}

    def open(self, environment: Environment) -> None:
        """Uses the file's entries of this machine.

        Raises:
            InvalidInput: the file is from a card, but this machine simulates one.
        """
        machine, before = machine_of(environment), self._kept["meta"]
        if environment.simulated and before and not before.get("simulated"):
            raise InvalidInput(
                "out", f"{self.path} is of {before.get('gpu')}", "use a separate file for a simulated run"
            )
        self._machine = machine | {"simulated": environment.simulated}
        if all(before.get(name) == machine[name] for name in _SAME):
            self.entries |= {job["job"]: job for job in self._kept["jobs"] if job["job"] not in self._anew}

    def put(self, name: str, entry: Entry) -> None:
        """Stores an entry and writes the file."""
        where = {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.entries[name] = {"job": name, **entry, **where}
        order = {task.name: place for place, task in enumerate(all_tasks())}
        jobs = sorted(self.entries.values(), key=lambda job: order.get(job["job"], len(order)))
        write_report(self.path, judge(self.entries), self._machine, jobs=jobs)


def next_task(left: Sequence[Task], entries: Mapping[str, Entry], left_s: float) -> Task | None:
    """The first of the remaining tasks that has no entry yet, fits the remaining time, and has what it needs."""
    for task in left:
        if task.name not in entries and task.seconds <= left_s and all(name in entries for name in task.needs):
            return task
    return None


def run_tasks(card: Card, tasks: Sequence[Task], table: Table, limit_s: float) -> list[str]:
    """Runs the tasks; returns the names of those that failed, with their reasons. Neighbours of one part share a
    service."""
    watch, left, failures = Watch(), list(tasks), list[str]()
    with ExitStack() as service:
        part, bench = "", None
        while task := next_task(left, table.entries, limit_s - watch.seconds):
            left.remove(task)
            if bench is None or task.part != part:
                service.close()
                part, bench = task.part, service.enter_context(card.open_bench())
            begin_s = time.monotonic()
            try:
                entry = task.run(bench, table.entries)
            except Exception as error:  # the other tasks may succeed, whatever the error
                failures.append(f"{task.name}: {message_of(error)}")
                print(f"{watch.seconds} s: {task.name} FAILED: {message_of(error)}", flush=True)
                continue
            wall_s = round(time.monotonic() - begin_s, 1)
            table.put(task.name, entry | {"wall_s": wall_s})
            print(f"{watch.seconds} s: {task.name} took {wall_s} s: {_line(entry)}", flush=True)
    if names := [task.name for task in left if task.name not in table.entries]:
        print(f"{watch.seconds} s: not begun: {', '.join(names)}", flush=True)
    return failures


def _line(entry: Entry) -> str:
    """The most important figures of an entry."""
    names = ("job_s", "batch_s", "search_s", "finals_s", "card_waits_for_builds_s", "card_idle_s", "card_share", "loss")
    figures = [f"{name} {entry[name]:.3g}" for name in names if entry.get(name) is not None]
    return ", ".join([*figures, *([entry["verdict"]] if "verdict" in entry else []), *entry.get("reasons", [])])


def chosen_tasks(tasks: Sequence[Task], parts: Collection[str], names: Sequence[str]) -> list[Task]:
    """The named tasks, in that order, then those of the parts; all if neither is given.

    Raises:
        SystemExit: a task is unknown; the message lists them.
    """
    by_name = {task.name: task for task in tasks}
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"no entry is called {', '.join(unknown)}; the entries are: {', '.join(by_name)}")
    named = [by_name[name] for name in names]
    return [*named, *(task for task in tasks if task not in named and (task.part in parts or not (parts or names)))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the tasks of the command line."""
    parser = parser_of(__doc__, "gpu", "seconds", "out")
    tasks = all_tasks()
    parser.add_argument("--part", action="append", choices=list(dict.fromkeys(task.part for task in tasks)))
    parser.add_argument("--task", action="append", help="one entry, e.g. own/64; run in the given order")
    parser.add_argument("--again", action="store_true", help="also repeat entries that the file has")
    parser.add_argument("--list", action="store_true", help="only list the entries and their expected seconds")
    options = parser.parse_args(arguments)
    chosen = chosen_tasks(tasks, options.part or (), options.task or ())
    if options.list:
        print(*(f"{task.name}: {task.seconds:g} s" for task in chosen), sep="\n")
        return
    with open_card(options.gpu) as card:
        path = options.out or results_file(card.target_id, "search")
        table = Table(path, [task.name for task in chosen] if options.again else ())
        table.open(card.environment)
        failures = run_tasks(card, chosen, table, options.seconds)
    for row in judge(table.entries):
        print(json.dumps({name: row.get(name) for name in ("check", "value", "bar", "holds", "of", "reason")}))
    if failures:
        sys.exit("\n".join(["failed:", *failures]))


if __name__ == "__main__":
    main()
