"""Plans run for their protocol alone: a kernel that computes nothing, what each task of it may read, and the judge.

The device half is protocol.cu. Nothing here needs a GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.core.plan import STATIC, TICKET, Plan
from tuner.core.tiling import Tiling
from tuner.core.workload import Workload
from workers.render import render

Ints = npt.NDArray[np.int64]

#: No timer's tick is longer.
MAX_TICK_NS = 2048

#: Device files of the mma engine in whose place protocol.cu stands.
REPLACED = ("copy.cuh", "mainloop_mma.cuh", "epilogue.cuh", "chain.cuh")

#: `Violation` in protocol.cu.
VIOLATION = np.dtype([(name, "<u4") for name in ("count", "kind", "task", "unit", "tile", "seen", "expected", "zero")])
KINDS = {1: "a stale read", 2: "a wrong sum", 3: "an overwritten word", 4: "a wrong epoch"}

#: `Run` in protocol.cu.
RUN = np.dtype(
    [
        *((name, "<u8") for name in ("words", "reads_begin", "reads", "read_steps", "times_done")),
        *((name, "<u8") for name in ("read_ns", "end_ns", "violation")),
        ("number", "<u4"),
        ("epoch", "<u4"),
        *((name, "<i4") for name in ("slow_unit", "short_cycles", "long_cycles", "slow_cycles")),
        *((name, "<i4", 4) for name in ("first_tile", "first_unit", "num_columns", "num_parts")),
    ]
)


def source(workload: Workload, tiling: Tiling) -> str:
    """The kernel of a tiling with protocol.cu in the place of all that multiplies; its name stays."""
    head, *sections = re.split(r"^// ---- (\S+)\n", render(workload, tiling), flags=re.MULTILINE)
    kept = {name: text for name, text in zip(sections[::2], sections[1::2], strict=True) if name not in REPLACED}
    body = (Path(__file__).parent / "protocol.cu").read_text(encoding="utf-8")
    return "\n".join((head, *(f"// ---- {name}\n{text}" for name, text in kept.items()), body))


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """Which tiles each unit reads, by the shapes alone: no plan, no signal, and none of the tile graph's code.

    A unit is a tile or a part of one. Units and tiles of all ops are numbered op by op, tile row by tile row.
    """

    #: [ops] of its grid of tiles.
    num_columns: tuple[int, ...]
    #: [ops]
    num_parts: tuple[int, ...]
    #: [ops + 1] the first of each op, and the number of all.
    first_tile: tuple[int, ...]
    first_unit: tuple[int, ...]
    #: [units] the tiles that it reads.
    reads: tuple[tuple[int, ...], ...]
    #: [units] in which of its k-steps it first reads each of them.
    read_steps: tuple[tuple[int, ...], ...]

    def unit(self, task: Sequence[int]) -> int:
        """The unit of a task's words."""
        op, row, col, part = task[0], task[1], task[2], task[6]
        return self.first_unit[op] + (row * self.num_columns[op] + col) * self.num_parts[op] + part

    def tile(self, task: Sequence[int]) -> int:
        """The tile of a task's words."""
        return self.first_tile[task[0]] + task[1] * self.num_columns[task[0]] + task[2]


def tables_of(workload: Workload, tiling: Tiling, *, strided: bool = False) -> Tables:
    """The tables, element by element; of parts that take a share of the k-steps in a row, or every so many-th."""
    names = [op.name for op in workload.ops]
    split = tiling.split_k or (1,) * len(names)
    shapes = list(zip(workload.ops, tiling.tiles, strict=True))
    rows = [len(range(0, op.m, tile.m)) for op, tile in shapes]
    columns = [len(range(0, op.n, tile.n)) for op, tile in shapes]
    num_tiles = [r * c for r, c in zip(rows, columns, strict=True)]
    first_tile = (0, *accumulate(num_tiles))
    reads: list[tuple[int, ...]] = []
    read_steps: list[tuple[int, ...]] = []
    for (op, tile), parts, num_rows, num_columns in zip(shapes, split, rows, columns, strict=True):
        if op.source not in names:
            reads += [()] * (num_rows * num_columns * parts)
            read_steps += [()] * (num_rows * num_columns * parts)
            continue
        producer = names.index(op.source)
        wrote = tiling.tiles[producer]
        steps = [range(op.k)[begin : begin + tile.k] for begin in range(0, op.k, tile.k)]
        bounds = [len(steps) * part // parts for part in range(parts + 1)]
        taken = [steps[part::parts] for part in range(parts)] if strided else [steps[a:b] for a, b in pairwise(bounds)]
        step_of: list[dict[int, int]] = []  # by part: column of tiles -> the first step that reads it
        for own in taken:
            last_first = ((k // wrote.n, number) for number, ks in reversed(list(enumerate(own))) for k in ks)
            step_of.append(dict(sorted(dict(last_first).items())))
        for row in range(num_rows):
            rows_of = sorted({line // wrote.m for line in range(op.m)[row * tile.m : (row + 1) * tile.m]})
            reads += [
                tuple(first_tile[producer] + r * columns[producer] + c for r in rows_of for c in cols)
                for cols in step_of
            ] * num_columns
            read_steps += [tuple(cols.values()) * len(rows_of) for cols in step_of] * num_columns
    return Tables(
        num_columns=tuple(columns),
        num_parts=split,
        first_tile=first_tile,
        first_unit=(0, *accumulate(n * parts for n, parts in zip(num_tiles, split, strict=True))),
        reads=tuple(reads),
        read_steps=tuple(read_steps),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """What some runs left behind, one after the other on the same counters."""

    #: The word of the last run, and how many there were.
    last_number: int
    num_runs: int
    #: The first violation, a `VIOLATION`.
    violation: Any
    #: Why a launch gave up waiting, or None.
    abort: str | None
    #: [tiles] the last number that was written for each.
    words: Ints
    #: [units] over all runs.
    times_done: Ints
    #: [runs, reads of all units] when a unit read a tile, and [runs, tiles] when a tile was there; nanoseconds, 0 for
    #: never.
    read_ns: Ints
    end_ns: Ints
    #: Of each workspace: the signals' values.
    signals: tuple[list[int], ...]
    #: Of each launch of a run: how often its counters were drawn from.
    draws: tuple[int, ...]


#: The launches of a run: of each workspace the plans that share it.
Launches = tuple[tuple[Plan, ...], ...]


def faults(record: Record, tables: Tables, launches: Launches) -> list[str]:
    """What is wrong with a record, in words; empty where the protocol was kept."""
    found = [f"a wait expired: {record.abort}"] if record.abort else []
    if record.violation["count"]:
        count, kind, task, unit, tile, seen, expected, _ = record.violation.item()
        which = f"task {task} (unit {unit}) saw {seen} for tile {tile}, expected {expected}"
        found.append(f"{count} violations, the first {KINDS[kind]}: {which}")
    wrong = np.flatnonzero(record.times_done != record.num_runs)
    found += [f"unit {unit} ran {record.times_done[unit]} times in {record.num_runs} runs" for unit in wrong[:1]]
    wrong = np.flatnonzero(record.words != record.last_number)
    found += [f"tile {tile} has the word {record.words[tile]}, not {record.last_number}" for tile in wrong[:1]]
    for number, (signals, plans) in enumerate(zip(record.signals, launches, strict=True)):
        expected = [record.num_runs * posts for posts in posts_per_launch(plans)]
        found += [f"the signals of workspace {number} are {signals}, not {expected}"] if signals != expected else []
    draws = tuple(record.num_runs * one for plans in launches for plan in plans for one in draws_per_launch(plan))
    found += [f"{record.draws} draws, not {draws}"] if record.draws != draws else []
    return found + _early_starts(record, tables)


def posts_per_launch(plans: Sequence[Plan]) -> list[int]:
    """Of each signal: one from each tile, whichever of its parts is the last."""
    posts = Counter(
        {(op, row, col): post for plan in plans for op, row, col, _, _, post, *_ in plan.tasks.tolist()}.values()
    )
    return [posts[signal] for signal in range(plans[0].num_signals)]


def draws_per_launch(plan: Plan) -> tuple[int, ...]:
    """Of each counter. A CTA with a queue draws once; of a list that CTAs draw from, each draws its end as well."""
    lists = {STATIC: (0,), TICKET: (plan.num_tasks,)}.get(
        plan.assignment, (plan.num_first_tasks, plan.num_tasks - plan.num_first_tasks)
    )
    return tuple(plan.num_ctas + num_tasks for num_tasks in lists)


def _early_starts(record: Record, tables: Tables) -> list[str]:
    """The read that came the longest time before its tile was there; the timer moves in ticks."""
    if not record.read_ns.all() or not record.end_ns.all():
        return ["a read or a tile left no stamp"]
    tiles = [tile for read in tables.reads for tile in read]
    early_ns = record.end_ns[:, tiles] - record.read_ns
    worst = int(early_ns.max(initial=0))
    tick = tick_ns(record) if worst else 0
    if worst <= tick:
        return []
    run, read = (int(index) for index in np.unravel_index(early_ns.argmax(), early_ns.shape))
    unit = int(np.searchsorted(np.cumsum([len(read) for read in tables.reads]), read, side="right"))
    which = f"run {run}: unit {unit} read {worst} ns before tile {tiles[read]} was there"
    return [f"{which}; the timer's tick is {tick} ns"]


def tick_ns(record: Record) -> int:
    """The shortest time between two different stamps."""
    times = np.unique(np.concatenate((record.read_ns.ravel(), record.end_ns.ravel())))
    return int(np.diff(times).min(initial=MAX_TICK_NS))
