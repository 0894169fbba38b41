"""A plan: tasks, waits and posts; and its one binary form, a table of int32 words.

The kernel gets the words, so all code that checks or runs a plan (`verify`, `interpret`, `simulate`) reads them, never
the objects from which they were made.

Layout (all int32, offsets counted in words from the start)::

    header, 16 words
        0 magic            0x52_4E_55_54 ("TUNR")
        1 version          5
        2 num_tasks
        3 num_signals
        4 num_ctas         CTAs of the persistent grid
        5 assignment       0 static queues, 1 tickets, 3 an assigned first wave, then tickets
        6 queue_offset     static: num_ctas + 1 words, queue q holds tasks[queue[q] : queue[q + 1]]; else 0
        7 task_offset
        8 wait_offset
        9 num_waits
        10 num_first_tasks a first wave: its tasks, one for each CTA; else 0
        11                 0
        12 held_stages     stages of weights that stay unrequested until a task's first waits are over, of those that
                           could be requested ahead; 0 for none
        13 strided_parts   1 if a part takes every num_parts-th k-step from its first one on, 0 if they are contiguous
        14 num_split_tiles slots in which the parts of a tile are added
        15 in_band_ops     bit i: op i reads as A, in band, what another op of the launch writes
    task, 8 words (at task_offset + 8 * t)
        0 op               its low 16 bits: index into the workload's ops
          part             its next 8 bits: which part of its tile it computes; 0 for a whole tile
          num_parts        its next 8 bits: into how many parts its tile is split; 0 for a whole tile
        1 tile_m           tile row; of a grid with more axes the leading ones in a row (`TileSpace.row_axes`)
        2 tile_n           tile column; the others in a row
        3 wait_begin       its waits are waits[wait_begin : wait_end]
        4 wait_end
        5 post             the signal that is incremented when the tile is stored, or -1
        6 first_step       its low 16 bits: the first k-step of a part, of all that the tile has
          num_steps        its high 16 bits: k-steps of a part; both without meaning for a whole tile, which has all
        7 slot             the slot of its tile, in which the parts are added; without meaning for a whole tile
    wait, 8 words (at wait_offset + 8 * w)
        0 signal_begin     every signal of [signal_begin, signal_end) must have reached the threshold
        1 signal_end
        2 threshold        required posts of each, counted from the start of this launch
        3 posts_per_launch posts that each of them gets in one launch: the epoch's step, so that no launch resets them
        4 before_step      the k-step of the task, counted from its first one, before whose load it waits; or 2^26 for
                           its epilogue, after the last product; a task's waits are in the order of their steps
        5..7               0

Each word has a range: `HEADER_RANGES` in `header`, `TASK_RANGES`, `WAIT_RANGES`. The sections follow each other in this
order, and tasks begin at a multiple of 8 words; the gaps between them are 0.

Parts: together, the parts of a tile cover each of the S = ceil(k / tile.k) k-steps of its op once. They are separate
tasks with their own waits. The part that finishes last adds them up, stores the tile and posts: a tile posts once,
however many parts it has. Only some tiles of an op may be split, into different numbers of parts, and only they have a
slot.

Tickets: CTAs draw 0, 1, 2, ... and run tasks[ticket]. A first wave: CTA c begins with tasks[c], and the tickets begin
after the wave. Signals are monotonic over launches: a wait is over when
signal - epoch * posts_per_launch >= threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tuner.core.plan.table.distinct import distinct_rows
from tuner.core.plan.table.header import (
    FIRST_WAVE,
    HEADER_WORDS,
    MAGIC,
    MAX_COUNT,
    MAX_STEPS,
    STATIC,
    TASK_WORDS,
    TICKET,
    VERSION,
    WAIT_WORDS,
    WordRange,
    layout,
    read_header,
    wrong_word,
)
from tuner.errors import WordError

Words = npt.NDArray[np.int32]

#: Number of values in a task's words: the first word has three values, the seventh two.
TASK_FIELDS = 11
#: Maximum parts of a tile, and k-steps of a part: limits of the words.
MAX_PARTS = 0xFF
MAX_PART_STEPS = 0xFFFF
#: Number of a wait's words that have a meaning.
WAIT_FIELDS = 5
#: The position of a wait for inputs of the epilogue.
EPILOGUE_STEP = MAX_STEPS


#: Ranges of the values in a task's words, in the order of `Plan.tasks`.
TASK_RANGES = (
    WordRange("op", 0, 2**15 - 1),
    WordRange("tile_m", 0, MAX_COUNT - 1),
    WordRange("tile_n", 0, MAX_COUNT - 1),
    WordRange("wait_begin", 0, MAX_COUNT),
    WordRange("wait_end", 0, MAX_COUNT),
    WordRange("post", -1, MAX_COUNT - 1),
    WordRange("part", 0, MAX_PARTS),
    WordRange("num_parts", 0, MAX_PARTS),
    WordRange("slot", 0, MAX_COUNT - 1),
    WordRange("first_step", 0, MAX_PART_STEPS),
    WordRange("num_steps", 0, MAX_PART_STEPS),
)
#: Ranges of a wait's words, in order.
WAIT_RANGES = (
    WordRange("signal_begin", 0, MAX_COUNT - 1),
    WordRange("signal_end", 1, MAX_COUNT),
    WordRange("threshold", 0, MAX_COUNT),
    WordRange("posts_per_launch", 0, MAX_COUNT),
    WordRange("before_step", 0, EPILOGUE_STEP),
    *(WordRange(f"word {number}", 0, 0) for number in range(WAIT_FIELDS, WAIT_WORDS)),
)


def _readonly(array: Words) -> Words:
    """A copy that cannot be made writable: a view of bytes, in column order, in which it is read."""
    return np.frombuffer(array.T.tobytes(), dtype=np.int32).reshape(array.T.shape).T


def _packed(tasks: Words) -> Words:
    """[num_tasks, 8] the words of tasks."""
    words = tasks[:, [0, 1, 2, 3, 4, 5, 9, 8]]
    words[:, 0] = tasks[:, 0] & 0xFFFF | (tasks[:, 6] & MAX_PARTS) << 16 | (tasks[:, 7] & MAX_PARTS) << 24
    words[:, 6] = tasks[:, 9] & MAX_PART_STEPS | tasks[:, 10] << 16
    return words


def _unpacked(words: Words) -> Words:
    """[num_tasks, 11] the values in the words of tasks."""
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
    #: [num_ctas + 1] for static queues, otherwise empty.
    queues: Words
    #: Signals, >= 0.
    num_signals: int
    #: CTAs of the persistent grid, >= 1.
    num_ctas: int
    #: 0 static, 1 ticket, 3 first wave.
    assignment: int = field(default=TICKET)
    #: Stages of weights that are not requested until a task's first waits are over; at least 0.
    held_stages: int = 0
    #: Whether each of P parts takes every P-th k-step, from its first one; otherwise its steps are contiguous.
    strided_parts: bool = False
    #: Number of slots for the parts of tiles.
    num_split_tiles: int = 0
    #: For a first wave, the number of CTAs; otherwise 0.
    num_first_tasks: int = 0
    #: Bit i: op i reads the output of another op of the launch in band: each element signals its own arrival.
    in_band_ops: int = 0

    @property
    def num_tasks(self) -> int:
        """Tasks of the plan."""
        return len(self.tasks)

    @property
    def needs_all_ctas(self) -> bool:
        """Whether a plan's liveness depends on every CTA being resident: tasks wait, and CTAs have different tasks."""
        return self.assignment != TICKET and self.num_signals > 0

    def first_task(self, cta: int) -> int | None:
        """The first task of a CTA, if the plan determines it; None if it is drawn, or there is none."""
        if cta < self.num_ctas and self.assignment == FIRST_WAVE:
            return cta
        if cta < self.num_ctas and self.assignment == STATIC and self.queues[cta] < self.queues[cta + 1]:
            return int(self.queues[cta])
        return None

    @cached_property
    def leader(self) -> npt.NDArray[np.int64]:
        """[num_tasks] the first task of the same tile: the parts of a tile share one leader, and a whole tile is its
        own."""
        leader = np.arange(self.num_tasks, dtype=np.int64)
        split = np.flatnonzero(self.tasks[:, 7] > 0)
        tiles = distinct_rows(self.tasks[split, :3])
        leader[split] = split[tiles.first[tiles.of]]
        return leader

    @cached_property
    def words(self) -> Words:
        """The plan's binary form: a view of `table`."""
        return np.frombuffer(self.table, dtype=np.int32)

    @cached_property
    def table(self) -> bytes:
        """The plan's binary form, read-only."""
        num_queue_words = self.queues.size if self.assignment == STATIC else 0
        queue_offset, task_offset, wait_offset, size = layout(num_queue_words, self.num_tasks, len(self.waits))
        words = np.zeros(size, dtype=np.int32)
        words[:HEADER_WORDS] = (
            MAGIC, VERSION, self.num_tasks, self.num_signals, self.num_ctas, self.assignment,
            queue_offset, task_offset, wait_offset, len(self.waits),
            self.num_first_tasks, 0, self.held_stages, self.strided_parts, self.num_split_tiles,
            self.in_band_ops,
        )  # fmt: skip
        if self.assignment == STATIC:
            words[queue_offset : queue_offset + self.queues.size] = self.queues
        words[task_offset:wait_offset] = _packed(self.tasks).ravel()
        words[wait_offset:].reshape(-1, WAIT_WORDS)[:, :WAIT_FIELDS] = self.waits
        return words.tobytes()

    def __reduce__(self) -> tuple[Callable[[bytes], Plan], tuple[bytes]]:
        """Pickled as its words: an array would become writable."""
        return Plan.from_words, (self.table,)

    def without_waits(self) -> Plan:
        """The same tasks without waits, for a launch whose producers are all done."""
        tasks = self.tasks.copy()
        tasks[:, 4] = tasks[:, 3]
        return replace(self, tasks=tasks)

    def with_in_band_waits_first(self) -> Plan:
        """The same tasks, with the waits of in-band readers moved before their first k-step, where they start."""
        reads = self.in_band_ops >> self.tasks[:, 0] & 1 == 1
        waits = self.waits.copy()
        for begin, end in distinct_rows(self.tasks[reads, 3:5]).rows.tolist():
            waits[begin:end, 4] = 0
        return replace(self, waits=waits)

    @classmethod
    def from_words(cls, words: Words | bytes) -> Plan:
        """Reads a plan's binary form. Its arrays, and its words, are views of bytes.

        Raises:
            WordError: the table is not a plan; the message names the wrong word, and what would be valid.
        """
        table = words if isinstance(words, bytes) else words.astype(np.int32).tobytes()
        header = read_header(table)
        words = np.frombuffer(table, dtype=np.int32)
        num_queue_words, num_waits = header.num_queue_words, header.num_waits
        queue_at, task_at, wait_at, _ = layout(num_queue_words, header.num_tasks, num_waits)
        _check_ranges(words[HEADER_WORDS + num_queue_words : task_at, None], (WordRange("filler", 0, 0),))
        waits = words[wait_at:].reshape(num_waits, WAIT_WORDS)
        _check_ranges(waits, WAIT_RANGES, " of wait")
        plan = cls(
            tasks=_readonly(_unpacked(words[task_at:wait_at].reshape(header.num_tasks, TASK_WORDS))),
            waits=_readonly(waits[:, :WAIT_FIELDS]),
            queues=_readonly(words[queue_at : queue_at + num_queue_words]),
            num_signals=header.num_signals,
            num_ctas=header.num_ctas,
            assignment=header.assignment,
            held_stages=header.held_stages,
            strided_parts=header.strided_parts,
            num_split_tiles=header.num_split_tiles,
            num_first_tasks=header.num_first_tasks,
            in_band_ops=header.in_band_ops,
        )
        _check_ranges(plan.tasks, TASK_RANGES, " of task")
        plan._check_indices()
        return plan

    def _check_indices(self) -> None:
        """Checks words that refer to tables in the same plan."""
        tasks, waits, queues = self.tasks, self.waits, self.queues
        rules = (
            (
                tasks[:, 4] > len(waits),
                "wait_end",
                "task",
                tasks[:, 4],
                f"be at most {len(waits)}, the number of waits",
            ),
            (tasks[:, 4] < tasks[:, 3], "wait_end", "task", tasks[:, 4], "not be below wait_begin"),
            (
                tasks[:, 5] >= self.num_signals,
                "post",
                "task",
                tasks[:, 5],
                f"be below {self.num_signals}, the number of signals",
            ),
            (waits[:, 1] <= waits[:, 0], "signal_end", "wait", waits[:, 1], "be above signal_begin"),
            (waits[:, 1] > self.num_signals, "signal_end", "wait", waits[:, 1], f"be at most {self.num_signals}"),
        )
        for is_wrong, word, what, values, right in rules:
            if is_wrong.any():
                number = int(np.flatnonzero(is_wrong)[0])
                raise wrong_word(f"{word} of {what} {number}", int(values[number]), right)
        if self.assignment != STATIC:
            return
        _check_ranges(queues[:, None], (WordRange("queue", 0, len(tasks)),), " word")
        if queues[0] != 0 or queues[-1] != len(tasks) or (np.diff(queues) < 0).any():
            right = f"they must rise from 0 to {len(tasks)}, the number of tasks"
            raise WordError("the queues do not cover each task once", f"they begin {queues.tolist()[:9]}; {right}")


def _check_ranges(rows: Words, ranges: Sequence[WordRange], where: str = "") -> None:
    """Checks that every word of every row is in its column's range; `where` precedes the number of a row in
    messages."""
    if not len(rows):
        return
    lowest, highest = rows.min(axis=0).tolist(), rows.max(axis=0).tolist()
    for column, (name, low, high) in enumerate(ranges):
        if low <= lowest[column] and highest[column] <= high:
            continue
        row = int(np.flatnonzero((rows[:, column] < low) | (rows[:, column] > high))[0])
        what = f"{name}{where} {row}" if where else name
        right = f"be {low} to {high}" if low < high else f"be {low}"
        raise wrong_word(what, int(rows[row, column]), right)
