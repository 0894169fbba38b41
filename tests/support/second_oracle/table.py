"""Decodes the words of a plan as the documents describe them, with separate code.

The head of `tuner/core/plan/table/words.py` and docs/proof.md describe the allowed words. Nothing of the prover or of
the first oracle is imported here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

STATIC, TICKET, FIRST_WAVE = 0, 1, 3
#: Maximum of any count in a plan, and maximum k-steps.
COUNT, STEPS = 1 << 24, 1 << 26
#: The position of a wait for the epilogue.
EPILOGUE = STEPS
#: Maximum first tasks in the parameter of a wgmma kernel, and maximum bytes of all slots.
WGMMA_CTAS, SLOT_BYTES = 160, 512 << 20


class Box(NamedTuple):
    """Elements of a tensor: a range of each of its dimensions."""

    tensor: str
    sides: tuple[range, ...]

    def meets(self, other: Box) -> bool:
        """Whether two boxes share an element."""
        return self.tensor == other.tensor and all(
            max(mine.start, theirs.start) < min(mine.stop, theirs.stop)
            for mine, theirs in zip(self.sides, other.sides, strict=True)
        )


class Op(NamedTuple):
    """One op of a kernel: its tiles, and the boxes of each CTA's tile.

    A CTA's tile is identified by the row and the column of the cluster's tile, and by its position in that tile.
    """

    grid: tuple[int, int]
    #: Steps, and maximum parts, of a tile.
    num_steps: int
    most_parts: int
    #: Bytes of a part's sums.
    sums_bytes: int
    #: A CTA's tile -> what it writes.
    writes: Mapping[tuple[int, int, int], Sequence[Box]]
    #: A CTA's tile -> [steps] what it reads in each.
    reads: Mapping[tuple[int, int, int], Sequence[Sequence[Box]]]
    #: A CTA's tile -> what it reads after its last step, of what its launch writes.
    late: Mapping[tuple[int, int, int], Sequence[Box]]

    @property
    def tensors(self) -> set[str]:
        """The tensors that it writes."""
        return {box.tensor for boxes in self.writes.values() for box in boxes}

    @property
    def reads_late(self) -> bool:
        """Whether any of its tiles reads something after its last step."""
        return any(self.late.values())


class Kernel(NamedTuple):
    """The data with which the words are compared."""

    ops: tuple[Op, ...]
    #: The kernel's ops, some of which the launch runs.
    launched: tuple[int, ...]
    is_wgmma: bool
    #: Stages of weights that its ring loads ahead of a task's inputs.
    stages_ahead: int
    #: CTAs of a cluster along m, n, k.
    cluster: tuple[int, int, int]
    #: CTAs, or clusters, that the card holds at once.
    resident: int
    #: Whether it has warps that read in band.
    has_readers: bool = False
    #: Whether each part of a tile adds up a share of it, and waits for the others.
    scatters: bool = False

    @property
    def size(self) -> int:
        """The CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def posts_of_tile(self) -> int:
        """The posts of each CTA on the device: if parts store shares, enough that all parts of a tile post equally
        often."""
        return math.lcm(*(op.most_parts for op in self.ops)) if self.scatters else 1

    def reads_of_launch(self, op: int) -> bool:
        """Whether the op reads an output of the launch in its steps."""
        written = set[str]().union(*(self.ops[other].tensors for other in self.launched))
        steps = (boxes for by_step in self.ops[op].reads.values() for boxes in by_step)
        return any(box.tensor in written for boxes in steps for box in boxes)


class Wait(NamedTuple):
    begin: int
    end: int
    threshold: int
    per_launch: int
    step: int


class Task(NamedTuple):
    op: int
    part: int
    num_parts: int
    row: int
    col: int
    wait_begin: int
    wait_end: int
    post: int
    first_step: int
    num_steps: int
    slot: int

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.op, self.row, self.col


class Table(NamedTuple):
    """A decoded plan."""

    num_signals: int
    num_ctas: int
    assignment: int
    held: int
    strided: bool
    num_slots: int
    queues: list[int]
    tasks: list[Task]
    waits: list[Wait]
    #: Bit i: op i reads A in band.
    in_band: int

    def reads_in_band(self, task: Task) -> bool:
        return bool(self.in_band >> task.op & 1)

    def waits_of(self, task: Task) -> list[Wait]:
        return self.waits[task.wait_begin : task.wait_end]


class Malformed(Exception):
    """The words are not a plan; the message says which word is wrong."""


def _want(holds: bool, what: str) -> None:
    if not holds:
        raise Malformed(what)


def read(raw: bytes) -> Table:
    """Decodes the words, or raises Malformed."""
    _want(len(raw) % 4 == 0 and len(raw) >= 64, "size")
    words = struct.unpack(f"={len(raw) // 4}i", raw)
    magic, version, num_tasks, num_signals, num_ctas, assignment, queue_at, task_at, wait_at, num_waits = words[:10]
    first_tasks, unused, held, strided, num_slots, in_band = words[10:16]
    _want(magic == struct.unpack("=i", b"TUNR")[0] and version == 5 and 0 <= in_band < 256, "magic, version, word 15")
    for name, value in (("tasks", num_tasks), ("signals", num_signals), ("waits", num_waits), ("slots", num_slots)):
        _want(0 <= value <= COUNT, name)
    _want(assignment in (STATIC, TICKET, FIRST_WAVE) and unused == 0, "assignment, word 11")
    _want(1 <= num_ctas <= COUNT and strided in (0, 1) and 0 <= held <= STEPS, "header")
    wave = num_ctas if assignment == FIRST_WAVE else 0
    _want(first_tasks == wave <= num_tasks, "the first wave")
    num_queue_words = num_ctas + 1 if assignment == STATIC else 0
    after_queues = 16 + num_queue_words
    _want(queue_at == (16 if num_queue_words else 0), "queue_offset")
    _want(task_at == (after_queues + 7) // 8 * 8 and wait_at == task_at + 8 * num_tasks, "task_offset, wait_offset")
    _want(len(words) == wait_at + 8 * num_waits, "the size of the table")
    _want(not any(words[after_queues:task_at]), "filler")
    queues = list(words[16:after_queues])
    if num_queue_words:
        _want(queues[0] == 0 and queues[-1] == num_tasks and queues == sorted(queues), "queues")
    waits = [_wait(words[at : at + 8], num_signals) for at in range(wait_at, len(words), 8)]
    tasks = [_task(words[at : at + 8], num_signals, num_waits) for at in range(task_at, wait_at, 8)]
    lists = (queues, tasks, waits, in_band)
    return Table(num_signals, num_ctas, assignment, held, bool(strided), num_slots, *lists)


def _wait(words: tuple[int, ...], num_signals: int) -> Wait:
    begin, end, threshold, per_launch, step, *zeros = words
    _want(0 <= begin < end <= num_signals, "a wait's signals")
    _want(0 <= threshold <= COUNT and 0 <= per_launch <= COUNT and 0 <= step <= EPILOGUE and not any(zeros), "a wait")
    return Wait(begin, end, threshold, per_launch, step)


def _task(words: tuple[int, ...], num_signals: int, num_waits: int) -> Task:
    who, row, col, wait_begin, wait_end, post, steps, slot = words
    who, steps = who % 2**32, steps % 2**32
    _want(who % 2**16 < 2**15 and 0 <= row < COUNT and 0 <= col < COUNT and 0 <= slot < COUNT, "a task")
    _want(0 <= wait_begin <= wait_end <= num_waits and -1 <= post < num_signals, "a task's waits, or its post")
    return Task(
        op=who % 2**16, part=who >> 16 & 255, num_parts=who >> 24, row=row, col=col, wait_begin=wait_begin,
        wait_end=wait_end, post=post, first_step=steps % 2**16, num_steps=steps >> 16, slot=slot,
    )  # fmt: skip


def steps_of(task: Task, kernel: Kernel, *, strided: bool) -> list[int]:
    """The k-steps of its tile that a task computes, over all ranks of a cluster."""
    if not task.num_parts:
        return list(range(kernel.ops[task.op].num_steps))
    return [task.first_step + i * (task.num_parts if strided else 1) for i in range(task.num_steps)]


def capacity_fault(table: Table, kernel: Kernel) -> str:
    """What exceeds the device's capacity; empty if nothing does."""
    if table.held > kernel.stages_ahead:
        return "more stages are held back than the ring has"
    if table.in_band & ~sum(1 << op for op in kernel.launched if kernel.has_readers and kernel.reads_of_launch(op)):
        return "an op reads in band what no op of the launch writes, or without readers"
    if kernel.is_wgmma and table.num_ctas > WGMMA_CTAS:
        return "a CTA's first task is beyond those of the parameter"
    if table.num_signals > sum(op.grid[0] * op.grid[1] for op in kernel.ops):
        return "more signals than tiles that could post to them"
    sums = [op.sums_bytes * op.most_parts for op in kernel.ops if op.most_parts > 1]
    if table.num_slots * max(sums, default=0) > SLOT_BYTES:
        return "the slots need more than a workspace has"
    needs_all = table.assignment != TICKET and table.num_signals > 0
    return "not every CTA is resident" if needs_all and table.num_ctas > kernel.resident else ""


def coverage_fault(table: Table, kernel: Kernel) -> str:
    """What is not computed exactly once, or does not use a separate slot; empty if nothing is."""
    by_tile: dict[tuple[int, int, int], list[Task]] = {}
    for task in table.tasks:
        by_tile.setdefault(task.tile, []).append(task)
    wanted = set()
    for number in kernel.launched:
        rows, cols = kernel.ops[number].grid
        wanted |= {(number, row, col) for row in range(rows) for col in range(cols)}
    if set(by_tile) != wanted:
        return "tiles that do not exist, or belong to no op"
    slots: list[int] = []
    for (number, _, _), tasks in by_tile.items():
        if len(tasks) == 1 and (tasks[0].part, tasks[0].num_parts) == (0, 0):
            continue
        most = kernel.ops[number].most_parts
        if not (most if kernel.scatters else 2) <= len(tasks) <= most:
            return "a tile is computed twice, in too many parts, or with different shares than in the kernel"
        if sorted(task.part for task in tasks) != list(range(len(tasks))):
            return "a part is missing or duplicated"
        if any(task.num_parts != len(tasks) or not task.num_steps for task in tasks):
            return "parts disagree on their number, or one is empty"
        taken = [step for task in tasks for step in steps_of(task, kernel, strided=table.strided)]
        whole = steps_of(tasks[0]._replace(num_parts=0), kernel, strided=False)
        if sorted(taken) != whole:
            return "the parts of a tile do not make up the tile"
        if len({(task.post, task.slot) for task in tasks}) != 1:
            return "parts disagree on their slot, or on what they post"
        slots.append(tasks[0].slot)
    is_own = len(slots) == len(set(slots)) and all(slot < table.num_slots for slot in slots)
    return "" if is_own else "two tiles use the same slot, or one that does not exist"


def out_of_turn(table: Table) -> bool:
    """Whether parts wait for each other, and tiles do not follow in turn: a tile's turn is the position of its last
    part, first the heads of all queues, then the later tasks. Turns increase along each queue, and waits depend on
    posts of earlier turns."""
    if not any(task.num_parts for task in table.tasks):
        return False
    if table.assignment != STATIC:
        return True
    places: dict[int, tuple[int, int]] = {}
    for queue, (begin, end) in enumerate(zip(table.queues, table.queues[1:], strict=False)):
        places |= {number: (number - begin, queue) for number in range(begin, end)}
    last: dict[tuple[int, int, int], tuple[int, int]] = {}
    posts: dict[tuple[int, int, int], int] = {}
    for number, task in enumerate(table.tasks):
        last[task.tile] = max(last.get(task.tile, (0, 0)), places[number])
        posts[task.tile] = task.post
    for begin, end in zip(table.queues, table.queues[1:], strict=False):
        turns = [last[task.tile] for task in table.tasks[begin:end]]
        if any(later <= earlier for earlier, later in pairwise(turns)):
            return True
    for task in table.tasks:
        earlier = [post for tile, post in posts.items() if last[tile] < last[task.tile]]
        for wait in table.waits_of(task):
            if any(earlier.count(signal) < wait.threshold for signal in range(wait.begin, wait.end)):
                return True
    return False
