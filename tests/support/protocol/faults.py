"""Faults for the protocol test: wrong waits of a plan, and wrong statements of the engine.

Each has the conditions under which it is certain to show. Nothing here needs a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from tests.support.protocol.kernel import Tables, posts_per_launch
from tuner.core.plan.table.header import STATIC
from tuner.core.plan.table.words import Plan
from tuner.core.schedule.ordering import Granularity, Ordering, SplitTiles, WaitPosition


class Fault(StrEnum):
    """The fault of a forged plan."""

    TOO_LOW = "threshold too low by one"
    REMOVED = "wait removed"
    LATE = "wait after the k-step that reads"

    def is_sure_to_show(self, ordering: Ordering) -> bool:
        """Whether all tasks whose waits the fault changes read the slow tile early: a task that waits late, and has
        read all other tiles, would delay the readers after it."""
        by_tile = (ordering.wait_position, ordering.granularity) == (WaitPosition.SLICE, Granularity.TILE)
        return by_tile or self is not Fault.LATE

    TOO_HIGH = "threshold too high by one"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A plan with a fault, and the conditions under which it is certain to show."""

    plan: Plan
    #: The tasks whose waits are wrong.
    tasks: frozenset[int]
    #: A tile that they read. If it is by far the last to arrive, only its post is missing at its signal.
    slow_tile: int
    #: The unit that delays it.
    slow_unit: int
    #: The signal of the tile, the number of its posts in a launch, and all signals of the waits.
    signal: int
    num_posts: int
    signals: frozenset[int]


def plant(plan: Plan, tables: Tables, fault: Fault) -> Planted:
    """The plan with a fault in the waits of one reader, and of all tasks that share their records."""
    reader, slow = _reader_and_slow(plan, tables)
    tasks, waits = plan.tasks.copy(), plan.waits.copy()
    begin, end, signal = *tasks[reader, 3:5].tolist(), int(tasks[slow, 5])
    changed = np.flatnonzero((tasks[:, 3] == begin) & (tasks[:, 4] == end))
    if fault is Fault.REMOVED:
        tasks[changed, 4] = begin
    else:
        mine = [wait for wait in range(begin, end) if waits[wait, 0] <= signal < waits[wait, 1]]
        if fault is Fault.LATE:
            unit = tables.unit(tasks[reader].tolist())
            read = tables.reads[unit].index(tables.tile(tasks[slow].tolist()))
            waits[mine, 4] = tables.read_steps[unit][read] + 1
            waits[begin:end] = waits[begin:end][np.argsort(waits[begin:end, 4], kind="stable")]
        else:
            waits[mine, 2] += 1 if fault is Fault.TOO_HIGH else -1
    return Planted(
        plan=replace(plan, tasks=tasks, waits=waits),
        tasks=frozenset(changed.tolist()),
        slow_tile=tables.tile(tasks[slow].tolist()),
        slow_unit=tables.unit(tasks[slow].tolist()),
        signal=signal,
        num_posts=posts_per_launch([plan])[signal],
        signals=_signals(plan, begin, end),
    )


def _reader_and_slow(plan: Plan, tables: Tables) -> tuple[int, int]:
    """A waiting task, and the last task of a tile that it reads, such that a slow tile delays only its own signal, and
    the reader is certain to run meanwhile.

    No task after the slow one in its queue posts (a CTA may also hold the next ticket). No task before the reader in
    its queue waits for the same signal; with tickets, there are fewer such tasks than CTAs.
    """
    bounds = plan.queues.tolist() if plan.assignment == STATIC else [0, plan.num_tasks]
    queue_of = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    last_of = {tables.tile(task): index for index, task in enumerate(plan.tasks.tolist())}
    posts = plan.tasks[:, 5] >= 0
    most_held_up = 0 if plan.assignment == STATIC else plan.num_ctas // 2
    for begin, end in dict.fromkeys(map(tuple, plan.tasks[:, 3:5].tolist())):
        signals = _signals(plan, begin, end)
        same = (plan.tasks[:, 3] == begin) & (plan.tasks[:, 4] == end)
        held_up = ~same & _waits_for_any(plan, signals)
        for reader in np.flatnonzero(same).tolist() if signals else ():
            if held_up[bounds[queue_of[reader]] : reader].sum() > most_held_up:
                continue
            for tile in tables.reads[tables.unit(plan.tasks[reader].tolist())]:
                slow = last_of[tile]
                apart = plan.assignment != STATIC or queue_of[slow] != queue_of[reader]
                if apart and not posts[slow + 1 : bounds[queue_of[slow] + 1]].any():
                    return reader, slow
    raise ValueError("no wait of this plan can be broken so that the error certainly shows")


def _signals(plan: Plan, begin: int, end: int) -> frozenset[int]:
    """The signals that the waits from `begin` to `end` wait for."""
    return frozenset(s for first, last, *_ in plan.waits[begin:end].tolist() for s in range(first, last))


def _waits_for_any(plan: Plan, signals: frozenset[int]) -> npt.NDArray[np.bool_]:
    """[tasks] whether a task waits for one of the signals."""
    ranges, range_of = np.unique(plan.tasks[:, 3:5], axis=0, return_inverse=True)
    waits = np.array([bool(signals & _signals(plan, begin, end)) for begin, end in ranges.tolist()])
    return waits[range_of.reshape(-1)]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change to one statement of the device files."""

    was: str
    becomes: str
    #: One of `KINDS`: the required consequence.
    kind: int
    #: One of `CASES`, in which the consequence is certain.
    case: str
    #: The tiles that are split in this case, if any can be.
    split_tiles: SplitTiles = SplitTiles.ALL

    def applied(self, text: str) -> str:
        """The source with the change."""
        assert text.count(self.was) == 1, f"not once in the source: {self.was}"
        return text.replace(self.was, self.becomes)


_FIRST_ADDS_UP = Mutant(
    was="is_last = before + 1 == (epoch + 1) * static_cast<u32>(task.num_parts);",
    becomes="is_last = before == epoch * static_cast<u32>(task.num_parts);",
    kind=2,
    case="parts",
)
MUTANTS = {
    "signals count from zero in every launch": Mutant(
        was="return epoch * static_cast<u32>(wait.posts_per_launch * posts_of_one());",
        becomes="return 0 * epoch;",
        kind=1,
        case="a pair",
    ),
    # Each reader loads words of later rows into its SM's L1. In a case with parts, their arrivals would also acquire.
    "no acquire after the wait": Mutant(
        was="ld.acquire.gpu.global.u32",
        becomes="ld.relaxed.gpu.global.u32",
        kind=1,
        case="narrow rows",
    ),
    "the first part to arrive adds up": _FIRST_ADDS_UP,
    "the first part of a tail to arrive adds up": replace(_FIRST_ADDS_UP, split_tiles=SplitTiles.TAIL),
    "the first part of a tail cut by k-steps adds up": replace(_FIRST_ADDS_UP, split_tiles=SplitTiles.STREAM),
    "a whole tile next to a split tail computes a part's k-steps": Mutant(
        was="const bool is_part = task.num_parts > 0;",
        becomes="const bool is_part = task.num_parts >= 0;",
        kind=6,
        case="parts",
        split_tiles=SplitTiles.TAIL,
    ),
}
