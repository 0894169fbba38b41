"""Safety: no task starts before the tasks whose output it reads have posted. Half of `tuner.core.verify`.

The fast path covers a read where the consumer waits for the producer's signal with a threshold that counts all posts
that the signal gets: it is then over only once the producer has posted. Where that does not hold, the question is
settled exactly: freeze the producer (it starts, and never completes) and see whether the consumer can still start.
`tuner.core.progress` argues why one run answers that: a run in which the consumer starts before the producer posts is,
up to there, a run with the producer frozen, and every run with the producer frozen is the beginning of a run in which
it is merely slow. A tile that is split is there once its last part is: each of its parts is frozen in turn.

Tasks that are drawn. A CTA may draw ahead, so the one that holds the frozen producer may hold the tasks that wait for
it, too, and leave the other CTAs to run past them. How far ahead an engine draws is its own business: each task gets a
CTA of its own here. One CTA alone runs its tasks in order, whatever it draws.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tuner.core.liveness import post_totals, range_reduce, task_name
from tuner.core.plan import STATIC, Plan
from tuner.core.progress import Protocol
from tuner.core.tiles import Edges, TileGraph
from tuner.errors import SafetyError

Ints = npt.NDArray[np.int64]


def check_safety(plan: Plan, graph: TileGraph) -> None:
    """Every edge of the tile graph is kept in every interleaving; the plan covers the graph and is live.

    Raises:
        SafetyError: the witness names the consumer, the producer and the signal that it fails to wait for.
    """
    readers: dict[int, list[int]] = {}
    totals = post_totals(plan)
    for edge in graph.edges:
        for producer, consumers in _uncovered(plan, graph, edge, totals):
            readers.setdefault(producer, []).extend(consumers)
    if not readers:
        return
    protocol, lane = Protocol(plan), _lanes(plan)
    num_ctas = plan.num_ctas if plan.assignment == STATIC or plan.num_ctas == 1 else plan.num_tasks
    for producer, members in readers.items():
        consumers = [task for task in members if lane[task] != lane[producer] or task < producer]
        if not consumers:
            continue
        started = protocol.run(num_ctas=num_ctas, frozen=producer).started
        racing = next((consumer for consumer in consumers if started[consumer]), None)
        if racing is not None:
            signal = int(plan.tasks[producer, 5])
            posts = f"posts to signal {signal}" if signal >= 0 else "posts nothing"
            raise SafetyError(
                "a read can precede its write",
                f"{task_name(plan, graph, racing)} can start before {task_name(plan, graph, producer)} is done, which "
                f"{posts}; the reader's waits {_waits_text(plan, racing)} do not count that post",
            )


def _lanes(plan: Plan) -> Ints:
    """[task] a number that two tasks share if one CTA is sure to run both, in the order of their indices."""
    if plan.assignment == STATIC:
        return np.repeat(np.arange(plan.num_ctas), plan.queues[1:].astype(np.int64) - plan.queues[:-1])
    return np.zeros(plan.num_tasks, dtype=np.int64) if plan.num_ctas == 1 else np.arange(plan.num_tasks)


def _waits_text(plan: Plan, task: int) -> str:
    records = plan.waits[plan.tasks[task, 3] : plan.tasks[task, 4]].tolist()
    texts = [f"(signals {begin}..{end - 1} >= {needed})" for begin, end, needed, _ in records]
    return ", ".join(texts) or "(none)"


def _uncovered(plan: Plan, graph: TileGraph, edge: Edges, totals: Ints) -> Iterator[tuple[int, list[int]]]:
    """Producer tasks that some consumers read without a wait that counts all posts of the producer's signal."""
    grid = graph.grids[edge.producer]
    mine = np.flatnonzero(plan.tasks[:, 0] == edge.producer)
    tile_of = np.ravel_multi_index((plan.tasks[mine, 1], plan.tasks[mine, 2]), grid)
    by_tile = mine[np.argsort(tile_of, kind="stable")]
    first_of = np.concatenate(([0], np.cumsum(np.bincount(tile_of, minlength=grid[0] * grid[1]))))
    signal_at = plan.tasks[by_tile[first_of[:-1]], 5].astype(np.int64).reshape(grid)
    consumers = np.flatnonzero(plan.tasks[:, 0] == edge.consumer)
    words = plan.tasks[consumers].astype(np.int64)
    keys = np.column_stack((words[:, (1, 3, 4)], edge.need(words[:, 6], words[:, 7])))
    groups, group_of = np.unique(keys, axis=0, return_inverse=True)
    loose = np.flatnonzero(~_covered_by_one_wait(plan, edge, groups, signal_at, totals))
    for group in loose.tolist():
        row, wait_begin, wait_end, need = groups[group].tolist()
        counted = np.zeros(plan.num_signals + 1, dtype=np.bool_)  # the last one stands for "posts nothing"
        for begin, end, needed, _ in plan.waits[wait_begin:wait_end].tolist():
            counted[begin:end] |= needed >= totals[begin:end]
        read = np.zeros(grid, dtype=np.bool_)
        read[edge.first[row] : edge.last[row], edge.first_col[need] : edge.last_col[need]] = True
        members = consumers[group_of.reshape(-1) == group].tolist()
        for tile in np.flatnonzero(read & ~counted[signal_at]).tolist():
            for producer in by_tile[first_of[tile] : first_of[tile + 1]].tolist():
                yield producer, members


def _covered_by_one_wait(plan: Plan, edge: Edges, groups: Ints, signal_at: Ints, totals: Ints) -> npt.NDArray[np.bool_]:
    """[groups of (consumer tile row, wait_begin, wait_end, need)] whether the first wait covers all that is read."""
    covered = np.zeros(len(groups), dtype=np.bool_)
    if not totals.size:
        return covered
    for need, (begin, end) in enumerate(zip(edge.first_col.tolist(), edge.last_col.tolist(), strict=True)):
        waiting = np.flatnonzero((groups[:, 2] > groups[:, 1]) & (groups[:, 3] == need))
        if not waiting.size:
            continue
        signals = signal_at[:, begin:end]
        lowest, highest, most = signals.min(axis=1), signals.max(axis=1), totals[signals].max(axis=1)
        first, last = edge.first[groups[waiting, 0]], edge.last[groups[waiting, 0]]
        wait = plan.waits[groups[waiting, 1]].astype(np.int64)
        covered[waiting] = (
            (wait[:, 0] <= range_reduce(np.minimum, lowest, first, last))
            & (range_reduce(np.minimum, lowest, first, last) >= 0)
            & (wait[:, 1] > range_reduce(np.maximum, highest, first, last))
            & (wait[:, 2] >= range_reduce(np.maximum, most, first, last))
        )
    return covered
