"""Tests the synchronisation protocol of plans with a kernel that computes nothing: what each task may read, and checks
of what it read.

The device half is kernel.cu. Nothing here needs a GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.protocol.tails import Tile, in_whole_waves, in_whole_waves_of_each_op
from tuner.core.plan.table.header import FIRST_WAVE, STATIC, TICKET
from tuner.core.plan.table.words import Plan
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Ordering, SplitOrder, SplitTiles
from tuner.core.schedule.tiling import Tiling
from tuner.workers.source.render import render

Ints = npt.NDArray[np.int64]

#: No timer has a longer tick.
MAX_TICK_NS = 2048

#: Device files of the mma engine that kernel.cu replaces.
REPLACED = ("copy.cuh", "gather.cuh", "mainloop_mma.cuh", "epilogue.cuh", "chain.cuh")

#: `Violation` in kernel.cu.
VIOLATION = np.dtype([(name, "<u4") for name in ("count", "kind", "task", "unit", "tile", "seen", "expected", "zero")])
KINDS = {
    1: "a stale read",
    2: "a wrong sum",
    3: "an overwritten word",
    4: "a wrong epoch",
    5: "a tile with different parts",
    6: "a read left out",
}

#: `Run` in kernel.cu.
RUN = np.dtype(
    [
        *((name, "<u8") for name in ("words", "first_unit", "reads_begin", "reads", "read_steps")),
        *((name, "<u8") for name in ("times_done", "read_ns", "end_ns", "violation")),
        ("number", "<u4"),
        ("epoch", "<u4"),
        *((name, "<i4") for name in ("slow_unit", "short_cycles", "long_cycles", "slow_cycles")),
        *((name, "<i4", 4) for name in ("first_tile", "num_columns")),
    ]
)


def source(workload: Workload, tiling: Tiling) -> str:
    """The kernel of a tiling, with kernel.cu replacing the multiplication; its name is unchanged."""
    head, *sections = re.split(r"^// ---- (\S+)\n", render(workload, tiling), flags=re.MULTILINE)
    kept = {name: text for name, text in zip(sections[::2], sections[1::2], strict=True) if name not in REPLACED}
    body = (Path(__file__).with_suffix(".cu")).read_text(encoding="utf-8")
    return "\n".join((head, *(f"// ---- {name}\n{text}" for name, text in kept.items()), body))


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """Which tiles each unit reads, computed from the shapes alone: without plans, signals or the code of the tile
    graph.

    A unit is a whole tile or a part of a split one. Units and tiles of all ops are numbered op by op, tile row by tile
    row.
    """

    #: [ops] the size of its tile grid.
    num_columns: tuple[int, ...]
    #: [ops + 1] the first tile of each op, and the number of all.
    first_tile: tuple[int, ...]
    #: [tiles + 1] the first unit of each tile, and the number of all.
    first_unit: tuple[int, ...]
    #: [units] the tiles that it reads.
    reads: tuple[tuple[int, ...], ...]
    #: [units] the k-step in which it first reads each of them.
    read_steps: tuple[tuple[int, ...], ...]

    def tile(self, task: Sequence[int]) -> int:
        """The tile of a task's words."""
        return self.first_tile[task[0]] + task[1] * self.num_columns[task[0]] + task[2]

    def num_units(self, tile: int) -> int:
        """The number of units of a tile: 1 if it is whole, otherwise its parts."""
        return self.first_unit[tile + 1] - self.first_unit[tile]

    def unit(self, task: Sequence[int]) -> int:
        """The unit of a task's words."""
        return self.first_unit[self.tile(task)] + task[6]


def tables_for(workload: Workload, tiling: Tiling, ordering: Ordering, plans: Sequence[Plan]) -> Tables:
    """The tables of an ordering's launches. From the plans it takes only the order in which their tiles are assigned
    and, if the k-steps of the tail are shared evenly, the steps of each part."""
    strided = ordering.split_order is SplitOrder.STRIDED
    if ordering.split_tiles is SplitTiles.ALL:
        return tables_of(workload, tiling, strided=strided)
    if ordering.split_tiles is SplitTiles.TAILS:
        whole = frozenset(tile for plan in plans for tile in in_whole_waves_of_each_op(plan))
        return tables_of(workload, tiling, strided=strided, whole=whole)
    whole = frozenset(tile for plan in plans for tile in in_whole_waves(plan, ordering.partition))
    stretches = stretches_of(plans) if ordering.split_tiles is SplitTiles.STREAM else None
    return tables_of(workload, tiling, strided=strided, whole=whole, stretches=stretches)


def stretches_of(plans: Sequence[Plan]) -> dict[Tile, list[slice]]:
    """The k-steps of each part of the tiles that `plans` split, in the order of the parts."""
    parts = sorted((*task[:3], task[6], *task[9:]) for plan in plans for task in plan.tasks.tolist() if task[7])
    stretches: dict[Tile, list[slice]] = {}
    for op, row, column, _, first, count in parts:
        stretches.setdefault((op, row, column), []).append(slice(first, first + count))
    return stretches


def tables_of(
    workload: Workload,
    tiling: Tiling,
    *,
    strided: bool = False,
    whole: frozenset[Tile] = frozenset(),
    stretches: Mapping[Tile, Sequence[slice]] | None = None,
) -> Tables:
    """The tables, element by element. Parts take an even share of consecutive k-steps, or every n-th step, or these
    `stretches`. Tiles of split ops are split unless they are among `whole`; if there are stretches, exactly the tiles
    that have some are split."""
    names = [op.name for op in workload.tile_ops]
    shapes = list(zip(workload.tile_ops, tiling.tiles, tiling.split_k or (1,) * len(names), strict=True))
    num_rows = [len(range(0, op.m, tile.m)) for op, tile, _ in shapes]
    num_columns = [len(range(0, op.n, tile.n)) for op, tile, _ in shapes]
    first_tile = (0, *accumulate(r * c for r, c in zip(num_rows, num_columns, strict=True)))
    units: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    first_unit = [0]
    for number, (op, tile, parts) in enumerate(shapes):
        steps = [range(op.k)[begin : begin + tile.k] for begin in range(0, op.k, tile.k)]
        bounds = [len(steps) * part // parts for part in range(parts + 1)]
        taken = [steps[part::parts] for part in range(parts)] if strided else [steps[a:b] for a, b in pairwise(bounds)]
        is_reader = op.source in names
        producer = names.index(op.source) if is_reader else number
        wrote = tiling.tiles[producer]
        read_by = partial(_first_steps, width=wrote.n) if is_reader else _reads_nothing
        for row in range(num_rows[number]):
            rows_read = sorted({line // wrote.m for line in range(op.m)[row * tile.m : (row + 1) * tile.m]})
            begins = [first_tile[producer] + row_read * num_columns[producer] for row_read in rows_read]
            even = [_unit_of(read_by(own), begins) for own in taken]
            as_whole = [_unit_of(read_by(steps), begins)]
            for column in range(num_columns[number]):
                tile_parts = as_whole if parts == 1 or (number, row, column) in whole else even
                if stretches is not None:
                    own_parts = stretches.get((number, row, column), ())
                    assert not (own_parts and (number, row, column) in whole)
                    tile_parts = [_unit_of(read_by(steps[own]), begins) for own in own_parts] or as_whole
                units += tile_parts
                first_unit.append(len(units))
    return Tables(
        num_columns=tuple(num_columns),
        first_tile=first_tile,
        first_unit=tuple(first_unit),
        reads=tuple(read for read, _ in units),
        read_steps=tuple(steps for _, steps in units),
    )


def _unit_of(columns: Mapping[int, int], begins: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a unit reads when it reads `columns` of the tile rows that start at `begins`, and in which step."""
    return tuple(begin + column for begin in begins for column in columns), tuple(columns.values()) * len(begins)


def _reads_nothing(steps: Sequence[range]) -> dict[int, int]:
    return {}


def _first_steps(steps: Sequence[range], width: int) -> dict[int, int]:
    """Column of tiles of width `width` that are read in the k-steps `steps` -> the first step that reads it."""
    last_first = ((k // width, number) for number, ks in reversed(list(enumerate(steps))) for k in ks)
    return dict(sorted(dict(last_first).items()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """The records of several consecutive runs on the same counters."""

    #: The word of the last run, and the number of runs.
    last_number: int
    num_runs: int
    #: The first violation, a `VIOLATION`.
    violation: Any
    #: Why a launch stopped waiting, or None.
    abort: str | None
    #: [tiles] the last number that was written for each.
    words: Ints
    #: [units] how often each was done, over all runs.
    times_done: Ints
    #: [runs, reads of all units] when a unit read a tile, and [runs, tiles] when a tile was complete; nanoseconds, 0
    #: for never.
    read_ns: Ints
    end_ns: Ints
    #: For each workspace: the signals' values.
    signals: tuple[list[int], ...]
    #: For each workspace and slot: the number of arrived parts.
    arrivals: tuple[list[int], ...]
    #: For each launch of a run: the number of draws from its counters.
    draws: tuple[int, ...]


#: The launches of a run: for each workspace, the plans that share it.
Launches = tuple[tuple[Plan, ...], ...]


def faults(record: Record, tables: Tables, launches: Launches) -> list[str]:
    """Describes what is wrong with a record; empty if the protocol was kept."""
    found = [f"a wait expired: {record.abort}"] if record.abort else []
    if record.violation["count"]:
        count, kind, task, unit, tile, seen, expected, _ = record.violation.item()
        which = f"task {task} (unit {unit}) saw {seen} for tile {tile}, expected {expected}"
        found.append(f"{count} violations, the first is {KINDS[kind]}: {which}")
    wrong = np.flatnonzero(record.times_done != record.num_runs)
    found += [f"unit {unit} ran {record.times_done[unit]} times in {record.num_runs} runs" for unit in wrong[:1]]
    wrong = np.flatnonzero(record.words != record.last_number)
    found += [f"tile {tile} has the word {record.words[tile]}, not {record.last_number}" for tile in wrong[:1]]
    for number, (signals, plans) in enumerate(zip(record.signals, launches, strict=True)):
        expected = [record.num_runs * posts for posts in posts_per_launch(plans)]
        found += [f"the signals of workspace {number} are {signals}, not {expected}"] if signals != expected else []
    for number, (arrivals, plans) in enumerate(zip(record.arrivals, launches, strict=True)):
        expected = [record.num_runs * parts for parts in arrivals_per_launch(plans, tables)]
        wrong_slots = f"the arrivals of workspace {number} are {arrivals}, not {expected}"
        found += [wrong_slots] if arrivals != expected else []
    draws = tuple(record.num_runs * one for plans in launches for plan in plans for one in draws_per_launch(plan))
    found += [f"{record.draws} draws, not {draws}"] if record.draws != draws else []
    return found + _early_starts(record, tables)


def posts_per_launch(plans: Sequence[Plan]) -> list[int]:
    """The posts per signal: one from each tile, whichever of its parts is last."""
    posts = Counter(
        {(op, row, col): post for plan in plans for op, row, col, _, _, post, *_ in plan.tasks.tolist()}.values()
    )
    return [posts[signal] for signal in range(plans[0].num_signals)]


def arrivals_per_launch(plans: Sequence[Plan], tables: Tables) -> list[int]:
    """The arrivals per slot: the parts of its tile. Whole tiles have none, whatever their words contain."""
    met = [0] * plans[0].num_split_tiles
    for task in (task for plan in plans for task in plan.tasks.tolist()):
        if (parts := tables.num_units(tables.tile(task))) > 1:
            met[task[8]] = parts
    return met


def draws_per_launch(plan: Plan) -> tuple[int, ...]:
    """The draws per counter. A CTA with a statically assigned first task makes one draw without a task; from the shared
    list, each CTA also draws the end."""
    drawn = plan.num_tasks - plan.num_first_tasks
    lists = {STATIC: (0,), TICKET: (drawn,), FIRST_WAVE: (0, drawn)}[plan.assignment]
    return tuple(plan.num_ctas + num_tasks for num_tasks in lists)


def _early_starts(record: Record, tables: Tables) -> list[str]:
    """The read that preceded its tile by the longest time, given the timer's resolution."""
    if not record.read_ns.all() or not record.end_ns.all():
        return ["a read or a tile recorded no stamp"]
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
