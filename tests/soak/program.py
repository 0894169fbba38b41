"""The common form of soak programs: seeded work of many units, in steps whose results are stored, so that an
interrupted run can be continued.

A step's rows depend only on the seed and the step. They are stored in build/soak as they are made, for one commit and
one seed; when the last step is done, all rows are written to benchmarks/results/soak, with date and commit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.report import NO_GPU, commit, given_command, write_report
from tests.support.repository import ROOT

Row = dict[str, Any]

RESULTS = ROOT / "benchmarks" / "results" / "soak"
KEPT = ROOT / "build" / "soak"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A range of a run's units."""

    #: Seed of this step's random numbers, different for all steps and seeds.
    seed: int
    #: Its units are numbered `first`, `first + 1`, ...
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Program:
    """One soak program."""

    name: str
    #: What is counted, in the plural.
    unit: str
    #: Units of a whole run.
    size: int
    #: Units of a step.
    step: int
    #: Computes one step's rows.
    work: Callable[[Step], list[Row]]
    #: Converts the rows of all steps to the rows of the results file, and to sentences about what is wrong.
    judge: Callable[[list[Row]], tuple[list[Row], list[str]]]


def steps(program: Program, seed: int, size: int) -> list[Step]:
    """The whole steps that have at least `size` units together."""
    count = -(-size // program.step)
    return [Step(seed=seed * 1_000_003 + i, first=i * program.step, count=program.step) for i in range(count)]


class Kept:
    """The rows of finished steps, in a file with a line for each, and the commands that ran them."""

    def __init__(self, path: Path) -> None:
        """Continues from the file's contents."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: dict[int, list[Row]] = {}
        #: Each step once, in the given order.
        self.commands: list[str] = []
        whole = ""
        for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
            if not line.endswith("\n"):  # cut off while it was written
                continue
            kept = json.loads(line)
            self._add(kept["step"], kept["rows"], kept["command"])
            whole += line
        path.write_text(whole)

    def keep(self, index: int, rows: list[Row]) -> None:
        """Appends a step's rows; they are on disk when it returns."""
        self._add(index, rows, command := given_command())
        with self._path.open("a") as file:
            file.write(json.dumps({"step": index, "rows": rows, "command": command}) + "\n")

    def _add(self, index: int, rows: list[Row], command: str) -> None:
        self.rows[index] = rows
        if command not in self.commands:
            self.commands.append(command)


def run(
    program: Program,
    *,
    seed: int = 1,
    size: int | None = None,
    seconds: float = float("inf"),
    num_processes: int = 1,
    kept: Path = KEPT,
    results: Path = RESULTS,
) -> list[str] | None:
    """Runs the remaining steps; returns what is wrong, or None if the time ran out before the last step."""
    todo = steps(program, seed, size or program.size)
    done = Kept(kept / f"{program.name}-{seed}-{commit()[:12]}.jsonl")
    left = {index: step for index, step in enumerate(todo) if index not in done.rows}
    for index, rows in _worked(program, left, seconds, num_processes):
        done.keep(index, rows)
        print(f"{program.name}: {len(done.rows) * program.step} {program.unit}", flush=True)
    if len(done.rows) < len(todo):
        print(f"{program.name}: {len(done.rows)} of {len(todo)} steps are done; the same command continues", flush=True)
        return None
    rows, wrong = program.judge([row for index in range(len(todo)) for row in done.rows[index]])
    setting = {"seed": seed, "unit": program.unit, "size": len(todo) * program.step}
    path, commands = results / f"{program.name}.json", "; ".join(done.commands)
    write_report(path, rows, {**NO_GPU, **setting}, command=commands)
    return wrong


def _worked(
    program: Program, left: dict[int, Step], seconds: float, num_processes: int
) -> Iterator[tuple[int, list[Row]]]:
    """Yields the rows of the steps; no step starts after `seconds`."""
    end = time.monotonic() + seconds
    if num_processes == 1:
        for index, step in left.items():
            if time.monotonic() >= end:
                return
            yield index, program.work(step)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        futures = {pool.submit(program.work, step): index for index, step in left.items()}
        for future in as_completed(futures):
            if future.cancelled():
                continue
            yield futures[future], future.result()
            if time.monotonic() >= end:
                for other in futures:
                    other.cancel()


def total(rows: Iterable[Row], key: str) -> list[Row]:
    """Merges rows with the same `key`, adding up their numbers."""
    sums: dict[str, Row] = {}
    for row in rows:
        into = sums.setdefault(row[key], {key: row[key]})
        for name, value in row.items():
            if name != key:
                into[name] = into.get(name, 0) + value
    return list(sums.values())


def main(program: Program) -> None:
    """Runs the command line of one program."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.soak.{program.name}", description=sys.modules["__main__"].__doc__
    )
    parser.add_argument("--size", type=int, default=program.size, help=f"{program.unit} of the whole run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no new step after this many")
    parser.add_argument("--processes", type=int, default=1, help="concurrent steps, if steps do not listen on a port")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    wrong = run(
        program,
        seed=arguments.seed,
        size=arguments.size,
        seconds=arguments.seconds,
        num_processes=arguments.processes,
        results=arguments.results,
    )
    if wrong:
        raise SystemExit("\n".join(wrong))
