"""A plan: tasks, who waits for what, and who posts what; and its one binary form, a table of int32 words.

The words are what a kernel is handed, so everything that judges a plan (`verify`, `interpret`, `simulate`) reads
them, never the objects that they were made from.

Layout (all int32, offsets counted in words from the start)::

    header, 16 words
        0 magic            0x52_4E_55_54 ("TUNR")
        1 version          5
        2 num_tasks
        3 num_signals
        4 num_ctas         CTAs of the persistent grid
        5 assignment       0 static queues, 1 tickets, 2 stealing, 3 a first wave that is dealt, then tickets
        6 queue_offset     static: num_ctas + 1 words, queue q holds tasks[queue[q] : queue[q + 1]]; else 0
        7 task_offset
        8 wait_offset
        9 num_waits
        10 num_first_tasks stealing: list 0 is tasks[:num_first_tasks], list 1 the others; a first wave: its tasks, one
                           for each CTA; else 0
        11 num_first_ctas  stealing: CTAs [0, num_first_ctas) begin with list 0, the others with list 1; else 0
        12 held_stages     stages of weights that stay unrequested until a task's first waits are over, of those that
                           could be requested ahead; 0 for none
        13 strided_parts   1 where a part takes every num_parts-th k-step from its first one on, 0 where all in a row
        14 num_split_tiles places in which the parts of a tile meet
        15                 0
    task, 8 words (at task_offset + 8 * t)
        0 op               its low 16 bits: index into the workload's ops
          part             its next 8 bits: which part of its tile it computes; 0 for a whole tile
          num_parts        its next 8 bits: into how many parts its tile is split; 0 for a whole tile
        1 tile_m           tile row
        2 tile_n           tile column
        3 wait_begin       its waits are waits[wait_begin : wait_end]
        4 wait_end
        5 post             the signal that gets 1 when the tile is stored, or -1
        6 first_step       its low 16 bits: the first k-step of a part, of all that the tile has
          num_steps        its high 16 bits: k-steps of a part; neither means anything for a whole tile, which has all
        7 slot             the place where the parts of its tile meet, of its own; it means nothing for a whole tile
    wait, 8 words (at wait_offset + 8 * w)
        0 signal_begin     every signal of [signal_begin, signal_end) must have reached the threshold
        1 signal_end
        2 threshold        posts needed of each, counted from the start of this launch
        3 posts_per_launch posts that each of them gets in one launch: the epoch's step, so that no launch resets them
        4 before_step      the k-step of the task, counted from its first one, before whose load it waits; a task's
                           waits are in the order of their steps
        5..7               0

Parts: together the parts of a tile have each of the S = ceil(k / tile.k) k-steps of its op once. They are tasks of
their own, with waits of their own. Whichever is done last adds them up, stores the tile and posts: a tile posts once,
however many parts it has. Only some tiles of an op may be split, into different numbers of parts, and only they have a
slot.

Tickets: CTAs draw 0, 1, 2, ... and run tasks[ticket]. A first wave: CTA c begins with tasks[c], and the tickets begin
behind the wave. Stealing: a CTA draws from its list, in table order, and when
that is exhausted, from the other one. Signals are monotonic over launches: a wait is over when
signal - epoch * posts_per_launch >= threshold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tuner.errors import PlanError

Words = npt.NDArray[np.int32]

MAGIC = int.from_bytes(b"TUNR", "little")
VERSION = 5
HEADER_WORDS = 16
TASK_WORDS = 8
WAIT_WORDS = 8
#: What the words of a task say, of which the first says three things and the seventh two.
TASK_FIELDS = 11
#: Most parts of a tile, and k-steps of a part: what the words have room for.
MAX_PARTS = 0xFF
MAX_PART_STEPS = 0xFFFF
#: Of these, the words that mean something.
WAIT_FIELDS = 5
STATIC, TICKET, STEALING, FIRST_WAVE = 0, 1, 2, 3


def _readonly(array: Words) -> Words:
    array.setflags(write=False)
    return array


def _packed(tasks: Words) -> Words:
    """[num_tasks, 8] the words of tasks."""
    words = tasks[:, [0, 1, 2, 3, 4, 5, 9, 8]]
    words[:, 0] = tasks[:, 0] & 0xFFFF | (tasks[:, 6] & MAX_PARTS) << 16 | (tasks[:, 7] & MAX_PARTS) << 24
    words[:, 6] = tasks[:, 9] & MAX_PART_STEPS | tasks[:, 10] << 16
    return words


def _unpacked(words: Words) -> Words:
    """[num_tasks, 11] what the words of tasks say."""
    tasks = words[:, [0, 1, 2, 3, 4, 5, 0, 0, 7, 6, 6]]
    tasks[:, 0] = words[:, 0].astype(np.int16)
    tasks[:, 6] = words[:, 0] >> 16 & MAX_PARTS
    tasks[:, 7] = words[:, 0] >> 24 & MAX_PARTS
    tasks[:, 9] &= MAX_PART_STEPS
    tasks[:, 10] = words[:, 6] >> 16 & MAX_PART_STEPS
    return tasks


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """One launch's plan as arrays; `to_words` and `from_words` are inverses."""

    #: [num_tasks, 11]: op, tile_m, tile_n, wait_begin, wait_end, post, part, num_parts, slot, first_step, num_steps; in
    #: queue or ticket order.
    tasks: Words
    #: [num_waits, 5]: signal_begin, signal_end, threshold, posts_per_launch, before_step.
    waits: Words
    #: [num_ctas + 1] for static queues, else empty.
    queues: Words
    #: Signals, >= 0.
    num_signals: int
    #: CTAs of the persistent grid, >= 1.
    num_ctas: int
    #: 0 static, 1 ticket, 2 stealing, 3 first wave.
    assignment: int = field(default=TICKET)
    #: Stages of weights that stay unrequested until a task's first waits are over; 0 and more.
    held_stages: int = 0
    #: Whether a part of P takes every P-th k-step from its first one on; else they are in a row.
    strided_parts: bool = False
    #: Places in which the parts of a tile meet; a slot is the number of one.
    num_split_tiles: int = 0
    #: Stealing: tasks of list 0, and CTAs that begin with it, of which there is one at least, as there is of others.
    #: A first wave: its tasks, as many as CTAs.
    num_first_tasks: int = 0
    num_first_ctas: int = 0

    @property
    def num_tasks(self) -> int:
        """Tasks of the plan."""
        return len(self.tasks)

    @property
    def needs_all_ctas(self) -> bool:
        """Whether its liveness rests on every CTA being resident: tasks wait, and not all CTAs are alike."""
        return self.assignment != TICKET and self.num_signals > 0

    def first_task(self, cta: int) -> int | None:
        """The task that a CTA begins with, where the plan says it; None where it is drawn, or there is none."""
        if cta < self.num_ctas and self.assignment == FIRST_WAVE:
            return cta
        if cta < self.num_ctas and self.assignment == STATIC and self.queues[cta] < self.queues[cta + 1]:
            return int(self.queues[cta])
        return None

    @cached_property
    def leader(self) -> npt.NDArray[np.int64]:
        """[num_tasks] the first task of the same tile: a tile's parts have one leader, a whole tile is its own."""
        leader = np.arange(self.num_tasks, dtype=np.int64)
        split = np.flatnonzero(self.tasks[:, 7] > 0)
        _, first, tile = np.unique(self.tasks[split, :3], axis=0, return_index=True, return_inverse=True)
        leader[split] = split[first][tile.reshape(-1)] if split.size else split
        return leader

    @cached_property
    def words(self) -> Words:
        """The plan's binary form, read-only."""
        queue_offset = HEADER_WORDS if self.assignment == STATIC else 0
        task_offset = HEADER_WORDS + (self.queues.size if self.assignment == STATIC else 0)
        task_offset += -task_offset % 8  # tasks and waits are 32 bytes, a sector each
        wait_offset = task_offset + self.num_tasks * TASK_WORDS
        words = np.zeros(wait_offset + len(self.waits) * WAIT_WORDS, dtype=np.int32)
        words[:15] = (
            MAGIC, VERSION, self.num_tasks, self.num_signals, self.num_ctas, self.assignment,
            queue_offset, task_offset, wait_offset, len(self.waits),
            self.num_first_tasks, self.num_first_ctas, self.held_stages, self.strided_parts, self.num_split_tiles,
        )  # fmt: skip
        if self.assignment == STATIC:
            words[queue_offset : queue_offset + self.queues.size] = self.queues
        words[task_offset:wait_offset] = _packed(self.tasks).ravel()
        words[wait_offset:].reshape(-1, WAIT_WORDS)[:, :WAIT_FIELDS] = self.waits
        return _readonly(words)

    def without_waits(self) -> Plan:
        """The same tasks, none of which waits: a launch all of whose producers are done."""
        tasks = self.tasks.copy()
        tasks[:, 4] = tasks[:, 3]
        return replace(self, tasks=tasks)

    @classmethod
    def from_words(cls, words: Words) -> Plan:
        """Reads a plan's binary form.

        Raises:
            PlanError: the table is not a plan: wrong magic, version, or an offset or index out of range.
        """
        words = np.ascontiguousarray(words, dtype=np.int32)
        if words.size < HEADER_WORDS or words[0] != MAGIC or words[1] != VERSION:
            raise PlanError("not a plan", f"the table must start with {MAGIC}, {VERSION} and hold a 16-word header")
        num_tasks, num_signals, num_ctas, assignment, queue_at, task_at, wait_at, num_waits = map(int, words[2:10])
        num_first_tasks, num_first_ctas, held, strided, num_split_tiles = map(int, words[10:15])
        is_known = assignment in (STATIC, TICKET, STEALING, FIRST_WAVE)
        is_known &= strided in (0, 1)
        counts = (num_tasks, num_signals, queue_at, num_waits, held, num_split_tiles)
        if min(counts) < 0 or num_ctas < 1 or not is_known:
            raise PlanError("not a plan", f"a header field is out of range: {words[:15].tolist()}")
        if assignment == STEALING and not (0 <= num_first_tasks <= num_tasks and 1 <= num_first_ctas < num_ctas):
            sides = f"{num_first_tasks} of {num_tasks} tasks, and {num_first_ctas} of {num_ctas} CTAs that begin there"
            raise PlanError("not a plan", f"the first list has {sides}; both lists must have CTAs")
        if assignment == FIRST_WAVE and not num_first_tasks == num_ctas <= num_tasks:
            wave = f"a first wave of {num_first_tasks} of {num_tasks} tasks on {num_ctas} CTAs"
            raise PlanError("not a plan", f"{wave}; it must have one for each")
        num_queue_words = num_ctas + 1 if assignment == STATIC else 0
        ends = (
            (queue_at if num_queue_words else HEADER_WORDS, num_queue_words),
            (task_at, num_tasks * TASK_WORDS),
            (wait_at, num_waits * WAIT_WORDS),
        )
        if any(begin < HEADER_WORDS or begin + size > words.size for begin, size in ends):
            raise PlanError("not a plan", f"a section lies outside the table of {words.size} words: {ends}")
        tasks = words[task_at : task_at + num_tasks * TASK_WORDS].reshape(-1, TASK_WORDS)
        plan = cls(
            tasks=_readonly(_unpacked(tasks)),
            waits=_readonly(
                words[wait_at : wait_at + num_waits * WAIT_WORDS].reshape(num_waits, WAIT_WORDS)[:, :WAIT_FIELDS]
            ),
            queues=_readonly(words[queue_at : queue_at + num_queue_words]),
            num_signals=num_signals,
            num_ctas=num_ctas,
            assignment=assignment,
            held_stages=held,
            strided_parts=bool(strided),
            num_split_tiles=num_split_tiles,
            num_first_tasks=num_first_tasks if assignment in (STEALING, FIRST_WAVE) else 0,
            num_first_ctas=num_first_ctas if assignment == STEALING else 0,
        )
        plan._check_indices()
        return plan

    def _check_indices(self) -> None:
        tasks, waits, queues = self.tasks, self.waits, self.queues
        if len(tasks) and (
            tasks[:, 3].min() < 0
            or (tasks[:, 4] < tasks[:, 3]).any()
            or tasks[:, 4].max() > len(waits)
            or tasks[:, 5].min() < -1
            or tasks[:, 5].max() >= self.num_signals
        ):
            raise PlanError("not a plan", "a task's wait range or posted signal is out of range")
        if len(waits) and (
            waits[:, 0].min() < 0 or (waits[:, 1] <= waits[:, 0]).any() or waits[:, 1].max() > self.num_signals
        ):
            raise PlanError("not a plan", "a wait's signal range is empty or out of range")
        if self.assignment == STATIC and (queues[0] != 0 or queues[-1] != len(tasks) or (np.diff(queues) < 0).any()):
            raise PlanError("not a plan", "the queues do not partition the tasks")
