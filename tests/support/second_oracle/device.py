"""The device's execution of a plan: which CTA of a cluster reads, waits, stores and posts when, in 32-bit arithmetic.

A *unit* is one CTA's share of a task. Units are numbered; a set of units is an integer used as a bit mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import NamedTuple

from tests.support.second_oracle.table import EPILOGUE, Box, Kernel, Table, Task, steps_of

WORD = 1 << 32


def signed(value: int) -> int:
    """A 32-bit word as the device compares it."""
    return (value + WORD // 2) % WORD - WORD // 2


def is_over(seen: int, base: int, threshold: int, size: int) -> bool:
    """The test of a wait: `(int)(seen - (base + threshold * kClusterSize)) >= 0`."""
    return signed(seen - (base + threshold * size)) >= 0


class Unit(NamedTuple):
    """One CTA's share of a task."""

    #: [its own k-steps, and the epilogue if that reads something] the units that write what it reads there.
    reads: tuple[int, ...]
    #: Its waits: number of the record, and its own k-step before which it comes, in the order of the plan.
    waits: tuple[tuple[int, int], ...]
    #: The units that split its tile's K with it, including itself: none stores before all have loaded. These are the
    #: units of a cluster, or those of all parts of its tile, if they are in different CTAs.
    peers: int


class Device:
    """One launch of a well-formed plan that covers its tiles."""

    def __init__(self, table: Table, kernel: Kernel) -> None:
        """Begins with the first launch on a workspace."""
        self.table, self.kernel, self.size = table, kernel, kernel.size
        self.num_units = len(table.tasks) * self.size
        #: How much one post of the plan counts in a wait.
        self.posts_of_one = self.size * kernel.posts_of_tile
        self.all = (1 << self.num_units) - 1
        self._writers: dict[tuple[int, int, int, int], int] = {}
        for number, task in enumerate(table.tasks):
            for rank in range(self.size):
                key = (*task.tile, self._place(rank))
                self._writers[key] = self._writers.get(key, 0) | self.unit(number, rank)
        self._written = [(kernel.ops[key[0]].writes[key[1:]], units) for key, units in self._writers.items()]
        self.units = [self._unit(number, rank) for number in range(len(table.tasks)) for rank in range(self.size)]
        #: [tasks] posts of each of its CTAs.
        self.posts_of = [self._posts_of(task) for task in table.tasks]
        #: Signals that receive posts, and one that represents all others; `totals` has the posts of CTAs that each gets
        #: per launch.
        self.signals = [*sorted({task.post for task in table.tasks if task.post >= 0}), -1]
        whole = self.size * kernel.posts_of_tile
        tiles = {task.tile: task.post for task in table.tasks}
        self.totals = [whole * sum(post == one for post in tiles.values()) for one in self.signals[:-1]] + [0]
        self._begin(0)

    def _begin(self, launch: int) -> None:
        self.launch = launch
        #: [waits] the condition of each: everything that the launch's number changes.
        self.tests = [self._table_of(number) for number in range(len(self.table.waits))]
        self.posts = cache(self._posts)
        self.loaded = cache(self._loaded)

    def at(self, launch: int) -> Device:
        """The launch with this number, from 0: signals and slots start where the earlier launches left them."""
        other = copy(self)
        other._begin(launch % WORD)
        return other

    def unit(self, task: int, rank: int) -> int:
        """The unit as a set."""
        return 1 << task * self.size + rank

    def _place(self, rank: int) -> int:
        """The CTA's tile within a cluster's tile: CTAs that differ only along k have the same."""
        return rank % (self.kernel.cluster[0] * self.kernel.cluster[1])

    def _unit(self, number: int, rank: int) -> Unit:
        task = self.table.tasks[number]
        op, along_k = self.kernel.ops[task.op], self.kernel.cluster[2]
        rank_k, own = rank // (self.kernel.cluster[0] * self.kernel.cluster[1]), (task.row, task.col, self._place(rank))
        steps = steps_of(task, self.kernel, strided=self.table.strided)[rank_k::along_k]
        reads = [self._writers_of(op.reads[own][step]) for step in steps]
        if in_band := self.table.reads_in_band(task):
            reads = [0] * len(reads)  # each element signals its own arrival
        is_late = op.reads_late or in_band
        if is_late:
            # The post of a tensor that is read in band represents these reads as well: all of them are treated as reads
            # after the last step.
            whole = [box for boxes in op.reads[own] for box in boxes] if in_band else []
            reads.append(self._writers_of([*op.late[own], *whole]))
        waits = []
        for index in range(task.wait_begin, task.wait_end):
            step = self.table.waits[index].step
            if step == EPILOGUE and is_late:
                waits.append((index, len(reads) - 1))
                continue
            waits.append((index, -((rank_k - step) // along_k) if along_k > 1 else step))
        same = (other for other in range(self.size) if self._place(other) == self._place(rank))
        peers = sum(self.unit(number, other) for other in same)
        if self.kernel.scatters and task.num_parts:
            peers = self._writers[(*task.tile, self._place(rank))]
        return Unit(tuple(reads), tuple(waits), peers)

    def _writers_of(self, boxes: Sequence[Box]) -> int:
        """The units that write an element of one of `boxes`."""
        found = 0
        for written, units in self._written:
            if any(box.meets(other) for box in boxes for other in written):
                found |= units
        return found

    def _posts_of(self, task: Task) -> int:
        whole = self.kernel.posts_of_tile
        return whole // task.num_parts if self.kernel.scatters and task.num_parts else whole

    def _table_of(self, number: int) -> dict[int, list[bool]]:
        """Index in `signals` -> [posts so far in this launch] whether the wait's test holds."""
        wait, one = self.table.waits[number], self.posts_of_one
        base = self.launch * wait.per_launch * one
        places = [place for place, signal in enumerate(self.signals[:-1]) if wait.begin <= signal < wait.end]
        if len(places) < wait.end - wait.begin:
            places.append(len(self.signals) - 1)
        return {
            place: [
                is_over((self.launch * self.totals[place] + posts) % WORD, base % WORD, wait.threshold, one)
                for posts in range(self.totals[place] + 1)
            ]
            for place in places
        }

    def wraps(self) -> bool:
        """Whether the test of a task's wait becomes true and later false again."""
        used = {index for unit in self.units for index, _ in unit.waits}
        return any(holds != sorted(holds) for index in used for holds in self.tests[index].values())

    def _posts(self, stored: int) -> tuple[int, ...]:
        """The posts of CTAs, by index in `signals`, once the units `stored` are stored. For a split tile, the last part
        of each rank posts; its counter shows which one that is: it began this launch at `launch * parts`, and has
        reached the next multiple."""
        posts = [0] * len(self.signals)
        arrived: dict[tuple[int, int], int] = {}
        for number, task in enumerate(self.table.tasks):
            for rank in range(self.size):
                if not stored & self.unit(number, rank):
                    continue
                if task.num_parts and not self.kernel.scatters:
                    counter = (task.slot, rank)
                    before = arrived.setdefault(counter, self.launch * task.num_parts % WORD)
                    arrived[counter] = (before + 1) % WORD
                    if arrived[counter] != (self.launch + 1) * task.num_parts % WORD:
                        continue
                if task.post >= 0:
                    posts[self.signals.index(task.post)] += self.posts_of[number]
        return tuple(posts)

    def holds(self, wait: int, posts: tuple[int, ...]) -> bool:
        """Whether a wait's test holds for all of its signals."""
        return all(holds[posts[place]] for place, holds in self.tests[wait].items())

    def _loaded(self, unit: int, posts: tuple[int, ...]) -> tuple[int, bool]:
        """The k-steps whose inputs a unit may have requested, and whether all of its waits have passed. The unit
        performs its waits in the order of the plan."""
        reads, waits, _ = self.units[unit]
        stands_at = 0
        for wait, step in waits:
            stands_at = max(stands_at, step)
            if not self.holds(wait, posts):
                return min(stands_at, len(reads)), False
        return len(reads), True

    def reads_too_early(self, unit: int, num_steps: int, stored: int) -> bool:
        """Whether one of its first steps reads data that has not been stored yet."""
        return any(needed & ~stored for needed in self.units[unit].reads[:num_steps])
