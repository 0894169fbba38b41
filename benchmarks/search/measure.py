"""Whether a search is as fast and as good as required: jobs of the service on this machine's GPU.

python -m benchmarks.search.measure [--part burst ...] [--task own/64 ...] [--seconds 540]

Named tasks come first, then those of the named parts. Parts, in order of importance: burst, long, sustained, more,
priors, seeds, ladder, own. If there are several cards of one model, each runs its own tasks, with its share of the
cores. A part has a separate service on each card, with an empty folder, so jobs of different parts are independent. A
job of burst, sustained, long, more or ladder starts without cubins. A contest compares times from the rounds of one
finals.

The file is written after every task. Its entries of the same card and kernel stay, so an interrupted run continues:
after `--seconds` no task starts that is not expected to fit. `--again` repeats existing entries.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common.program import Watch, parser_of
from benchmarks.common.report import commit, results_file, write_report
from benchmarks.search.cards import Done, Opened, SideBySide, cards_here, run_on_cards, target_here
from benchmarks.search.judge import judge
from benchmarks.search.tasks import Entry, Task, all_tasks
from tuner.errors import InvalidInput, WorkerError

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

    def open(self, machine: dict[str, Any], *, simulated: bool) -> None:
        """Uses the file's entries of this machine; called for each of its cards.

        Raises:
            InvalidInput: the file is from a card but this machine simulates one, or its cards differ.
        """
        if self._machine and any(self._machine[name] != machine[name] for name in _SAME):
            raise InvalidInput("gpu", "the cards of this machine differ", "choose one by CUDA_VISIBLE_DEVICES")
        before = self._kept["meta"]
        if simulated and before and not before.get("simulated"):
            raise InvalidInput(
                "out", f"{self.path} is of {before.get('gpu')}", "use a separate file for a simulated run"
            )
        self._machine = machine | {"simulated": simulated}
        if all(before.get(name) == machine[name] for name in _SAME):
            kept = {job["job"]: job for job in self._kept["jobs"] if job["job"] not in self._anew}
            self.entries |= {name: job for name, job in kept.items() if name not in self.entries}

    def names(self) -> set[str]:
        """The file's entries, from any machine."""
        return {job["job"] for job in self._kept["jobs"]}

    def put(self, name: str, entry: Entry) -> None:
        """Stores an entry and writes the file."""
        where = {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.entries[name] = {"job": name, **entry, **where}
        order = {task.name: place for place, task in enumerate(all_tasks())}
        jobs = sorted(self.entries.values(), key=lambda job: order.get(job["job"], len(order)))
        write_report(self.path, judge(self.entries), self._machine, jobs=jobs)


def run_tasks(tasks: Sequence[Task], table: Table, gpu: str, limit_s: float) -> list[str]:
    """Runs the tasks on this machine's cards; returns the names of those that failed, with their reasons."""
    watch, failures = Watch(), list[str]()

    def opened(card: Opened) -> None:
        table.open(card.machine, simulated=card.simulated)

    def done(task: Done) -> None:
        if task.entry is None:
            failures.append(f"{task.name}: {task.failure}")
            print(f"{watch.seconds} s: {task.name} FAILED: {task.failure}", flush=True)
            return
        table.put(task.name, task.entry | {"wall_s": task.wall_s})
        print(f"{watch.seconds} s: {task.name} took {task.wall_s} s: {_line(task.entry)}", flush=True)

    line = SideBySide(tasks, table.entries, lambda: limit_s - watch.seconds)
    run_on_cards(gpu, cards_here(gpu), line, table.entries, opened, done)
    if left := line.not_begun():
        print(f"{watch.seconds} s: not begun: {', '.join(left)}", flush=True)
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


def _file_of(gpu: str, *, is_needed: bool) -> Path:
    """The file of entries; none without a card, if it is not needed.

    Raises:
        SystemExit: `gpu` is not a valid choice, or there is no card.
    """
    try:
        return results_file(target_here(gpu), "search")
    except WorkerError as error:
        if is_needed:
            sys.exit(f"--gpu {gpu}: {error}; or simulate a card, e.g. --gpu simulated:h200")
        return Path(os.devnull) / "search.json"
    except InvalidInput as error:
        sys.exit(f"--gpu: {error}")


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
    path = options.out or _file_of(options.gpu, is_needed=not options.list)
    table = Table(path, [task.name for task in chosen] if options.again else ())
    if options.list:
        for task in chosen:
            print(f"{task.name}: {task.seconds:g} s{', kept' if task.name in table.names() else ''}")
        return
    failures = run_tasks(chosen, table, options.gpu, options.seconds)
    for row in judge(table.entries):
        print(json.dumps({name: row.get(name) for name in ("check", "value", "bar", "holds", "of", "reason")}))
    if failures:
        sys.exit("\n".join(["failed:", *failures]))


if __name__ == "__main__":
    main()
