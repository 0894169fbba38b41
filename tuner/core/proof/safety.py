"""Safety: no task reads before the tasks whose output it reads have posted. Half of `tuner.core.proof.verify`.

The fast path covers a consumer that waits for the producer's signal before the first k-step that reads the producer's
output, with a threshold that counts all posts of the signal. That step is then reached only once the producer has
posted. Otherwise an exact check decides: the producer is frozen (it starts, but never completes), and the consumer must
not be able to reach that step. `symbolic_run` explains why one run decides that. A run in which the consumer reads
before the producer posts is, up to that point, a run with the producer frozen. And every run with the producer frozen
is the beginning of a run in which the producer is merely slow. A split tile is complete once its last part is, so each
of its parts is frozen in turn.

Late reads of a task may also be covered by waits of other tasks. A wait that counts all posts of a signal implies the
tiles that post to it, and recursively the waits of these tiles. Release and acquire are cumulative, so earlier results
are also visible. `tuner.core.proof.implied` follows that.

Tasks of one CTA. An engine may take the next task, from a queue or by ticket, before the current one is done, and load
its operands; with two alternating warpgroups it may even finish it. How far it runs ahead depends on the engine, so
running on the same CTA implies no order here: each task gets its own CTA.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.boxes import Places
from tuner.core.plan.graph.edges import Edge
from tuner.core.plan.graph.needs import Needs
from tuner.core.plan.graph.tile_graph import TaskGraph
from tuner.core.plan.table.distinct import distinct_rows
from tuner.core.plan.table.words import EPILOGUE_STEP, Plan
from tuner.core.proof.implied import Implied, counted_before
from tuner.core.proof.liveness import post_totals, task_name
from tuner.core.proof.symbolic_run import Protocol
from tuner.errors import SafetyError

Ints = npt.NDArray[np.int64]

#: A producer's task, the first step that reads its output, and the tasks that may reach that step too early according
#: to their waits.
_Loose = tuple[int, int, list[int]]
#: An edge, a task that reads through it, and the step.
_Read = tuple[Edge, int, int]


def check_safety(plan: Plan, graph: TaskGraph) -> None:
    """Checks that every edge of the tile graph holds in every interleaving; assumes that the plan covers the graph and
    is live.

    Raises:
        SafetyError: the witness has the consumer and the k-step that reads, the producer and the signal that was
            not waited for by then; or a wait is in a position that the device does not check.
    """
    check_steps(plan, graph)
    early: dict[int, list[_Read]] = {}
    for edge, (producer, step, consumers) in _all_uncovered(plan, graph):
        early.setdefault(producer, []).extend((edge, consumer, step) for consumer in consumers)
    if not early:
        return
    protocol = Protocol(plan)
    for producer, reads in early.items():
        progress = protocol.run_apart(frozen=producer)
        racing = next((read for read in reads if progress.reaches(*read[1:])), None)
        if racing is not None:
            edge, reader, step = racing
            signal = int(plan.tasks[producer, 5])
            posts = f"posts to signal {signal}" if signal >= 0 else "posts nothing"
            raise SafetyError(
                "a read can come before its write",
                f"{task_name(plan, graph, reader)} can {_what(step)} before {task_name(plan, graph, producer)}"
                f" is done, which {posts}; the reader's waits {_waits_text(plan, reader)} do not count that post by"
                f" then, when it reads {_box_text(plan, graph, edge, reader, step)}",
            )


def num_unshown(plan: Plan, graph: TaskGraph) -> int:
    """Number of reads whose waits alone do not show that they come after the write."""
    return sum(len(consumers) for _, (_, _, consumers) in _all_uncovered(plan, graph))


def _all_uncovered(plan: Plan, graph: TaskGraph) -> Iterator[tuple[Edge, _Loose]]:
    """Reads whose waits alone do not prove that they are in order; early reads come first."""
    totals = post_totals(plan)
    implied = Implied(plan, totals) if graph.late_edges else None
    ops: dict[int, _Tasks] = {}
    for edge in (*graph.early_edges, *graph.late_edges):
        for op in (edge.producer, edge.consumer):
            ops[op] = ops.get(op) or _Tasks(plan, graph, op)
        readers, writers = ops[edge.consumer], ops[edge.producer]
        needs = edge.needs(readers.places, readers.steps)
        if edge.is_late and implied is not None:
            found = _uncovered_late(readers, writers, needs, implied)
        else:
            found = _uncovered(plan, readers, writers, needs, totals)
        yield from ((edge, one) for one in found)


class _Tasks:
    """The tasks of one op."""

    def __init__(self, plan: Plan, graph: TaskGraph, op: int) -> None:
        self._num_tiles = graph.spaces[op].num_tiles
        #: The tasks' numbers in the plan.
        self.numbers: Ints = np.flatnonzero(plan.tasks[:, 0] == op)
        self._words, self._graph, self._op = plan.tasks[self.numbers], graph, op
        self._posts = self._words[:, 5]

    @cached_property
    def tiles(self) -> Ints:
        """[tasks] the tile of each task."""
        return self._graph.spaces[self._op].numbers(self._words)

    @cached_property
    def places(self) -> Places:
        """By axis, [tasks] the coordinate of each task's tile in its grid."""
        return self._graph.spaces[self._op].places(self._words)

    @cached_property
    def steps(self) -> Ints:
        """[tasks, 3] the steps of each task."""
        return self._graph.steps_of(self._words)

    @cached_property
    def waits(self) -> Ints:
        """[2, tasks] begin and end of each task's waits."""
        return self._words[:, 3:5].T.astype(np.int64)

    @cached_property
    def by_tile(self) -> Ints:
        """[tiles + 1] where the tasks of each tile begin in `in_order`."""
        return np.concatenate(([0], np.cumsum(np.bincount(self.tiles, minlength=self._num_tiles))))

    @cached_property
    def in_order(self) -> Ints:
        """[tasks] indices of the tasks, tile by tile."""
        return np.argsort(self.tiles, kind="stable")

    @cached_property
    def signal_of_tile(self) -> Ints:
        """[tiles] the signal that each tile posts to, or -1."""
        signals = np.full(self._num_tiles, -1, dtype=np.int64)
        signals[self.tiles] = self._posts
        return signals

    def of_tile(self, tile: int) -> list[int]:
        """The tasks of a tile: one, or its parts."""
        mine = self.in_order[self.by_tile[tile] : self.by_tile[tile + 1]]
        tasks: list[int] = self.numbers[mine].tolist()
        return tasks


def _box_text(plan: Plan, graph: TaskGraph, edge: Edge, reader: int, step: int) -> str:
    """The box that a task reads in one of its steps, or after them."""
    first, stride, _ = graph.steps_of(plan.tasks[[reader]])[0].tolist()
    tile = edge.reader.coordinates(*plan.tasks[reader, 1:3].tolist())
    return edge.read.box.text(tile, 0 if step == EPILOGUE_STEP else first + step * stride)


def _what(step: int) -> str:
    return "reach its epilogue" if step == EPILOGUE_STEP else f"load its k-step {step}"


def check_steps(plan: Plan, graph: TaskGraph) -> None:
    """Checks that the waits of each task are in order, and come before k-steps that the task has or before an epilogue
    that reads another op's output in the launch. In any other position after the last k-step, a wait protects no read,
    and its effect depends on the engine: it delays this task, the next one, or nothing.

    Raises:
        SafetyError: this does not hold, with the task and the positions of its waits.
    """
    if not len(plan.waits):
        return
    step = plan.waits[:, 4].astype(np.int64)
    begin, end = plan.tasks[:, 3].astype(np.int64), plan.tasks[:, 4].astype(np.int64)
    falls = np.concatenate(([0, 0], np.cumsum(np.diff(step) < 0)))  # [w] decreases between neighbours up to wait w - 1
    unordered = np.flatnonzero((end > begin) & (falls[end] > falls[np.minimum(begin + 1, end)]))
    waiting = np.flatnonzero(end > begin)
    num_steps = graph.steps_of(plan.tasks)[:, 2]
    reads_late = np.isin(plan.tasks[waiting, 0], [edge.consumer for edge in graph.late_edges])
    late = np.concatenate(([0], np.cumsum(step == EPILOGUE_STEP)))
    num_late = late[end[waiting]] - late[begin[waiting]]  # the last of them, if they are in order
    last = end[waiting] - 1 - num_late
    is_beyond = (last >= begin[waiting]) & (step[last] >= num_steps[waiting])
    beyond = waiting[is_beyond | ((num_late > 0) & ~reads_late)]
    for wrong, problem in (
        (unordered, "are not in the order of their k-steps"),
        (beyond, "are at a k-step that it does not have"),
    ):
        if wrong.size:
            task = int(wrong[0])
            who = f"{task_name(plan, graph, task)}, of {num_steps[task]} k-steps"
            raise SafetyError("a wait is in the wrong place", f"{who}: its waits {_waits_text(plan, task)} {problem}")


def _waits_text(plan: Plan, task: int) -> str:
    records = plan.waits[plan.tasks[task, 3] : plan.tasks[task, 4]].tolist()
    texts = [f"(signals {begin}..{end - 1} >= {needed}{_place(step)})" for begin, end, needed, _, step in records]
    return ", ".join(texts) or "(none)"


def _place(step: int) -> str:
    if step == EPILOGUE_STEP:
        return " before the epilogue"
    return f" before step {step}" if step else ""


def _uncovered(plan: Plan, readers: _Tasks, writers: _Tasks, needs: Needs, totals: Ints) -> Iterator[_Loose]:
    """Producer tasks, the first step that reads their output, and the consumers that reach it without a wait that
    counts all posts of the producer's signal."""
    signals = writers.signal_of_tile[needs.tiles]
    groups = distinct_rows(np.stack((needs.of, *readers.waits)).T)
    loose = np.flatnonzero(~_covered_by_one_wait(plan, needs, groups.rows, signals, totals))
    for group in loose.tolist():
        number, wait_begin, wait_end = groups.rows[group].tolist()
        before, entries = counted_before(plan, wait_begin, wait_end, totals), needs.entries(number)
        late = np.flatnonzero(before[signals[entries]] > needs.steps[entries]) + entries.start
        if not late.size:
            continue
        members = readers.numbers[groups.of == group].tolist()
        for entry in late.tolist():
            for producer in writers.of_tile(int(needs.tiles[entry])):
                yield producer, int(needs.steps[entry]), members


def _uncovered_late(readers: _Tasks, writers: _Tasks, needs: Needs, implied: Implied) -> Iterator[_Loose]:
    """Producer tasks, and the consumers that pass their last step without a wait that implies them, whether their own
    or that of a task that they wait for."""
    signals = writers.signal_of_tile[needs.tiles]
    groups = distinct_rows(np.stack((implied.list_of[readers.numbers], needs.of)).T)
    bounds = np.flatnonzero(np.diff(groups.rows[:, 0], prepend=-1, append=-1))
    for begin, end in pairwise(bounds.tolist()):
        entries, of = needs.gathered(groups.rows[begin:end, 1])
        missing = np.flatnonzero(~implied.by_waits(int(groups.rows[begin, 0]), signals[entries]))
        for entry, group in zip(entries[missing].tolist(), of[missing].tolist(), strict=True):
            members = readers.numbers[groups.of == begin + group].tolist()
            for producer in writers.of_tile(int(needs.tiles[entry])):
                yield producer, EPILOGUE_STEP, members


def _covered_by_one_wait(plan: Plan, needs: Needs, groups: Ints, signals: Ints, totals: Ints) -> npt.NDArray[np.bool_]:
    """[groups of (list of tiles, wait_begin, wait_end)] whether the first wait covers everything that is read, from
    the first step on; `signals` has the signals of all lists in sequence."""
    number, wait_begin, wait_end = groups.T
    covered: npt.NDArray[np.bool_] = needs.begin[number] == needs.begin[number + 1]
    waiting = np.flatnonzero(~covered & (wait_end > wait_begin))
    if not totals.size or not waiting.size:
        return covered
    filled = np.flatnonzero(np.diff(needs.begin))
    lowest, highest, most = np.zeros((3, needs.num_lists), dtype=np.int64)
    for ufunc, values, found in (
        (np.minimum, signals, lowest),
        (np.maximum, signals, highest),
        (np.maximum, totals[signals], most),
    ):
        found[filled] = ufunc.reduceat(values, needs.begin[filled])
    mine, wait = number[waiting], plan.waits[wait_begin[waiting]].astype(np.int64)
    covered[waiting] = (
        (wait[:, 4] == 0)
        & (wait[:, 0] <= lowest[mine])
        & (lowest[mine] >= 0)
        & (wait[:, 1] > highest[mine])
        & (wait[:, 2] >= most[mine])
    )
    return covered
