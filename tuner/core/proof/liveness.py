"""Liveness: no task waits forever. Half of `tuner.core.proof.verify`.

Tickets. The order of the tickets must be a linear extension of the waits: each is satisfied by posts of lower tickets
alone. Then the lowest unfinished ticket never waits for another unfinished one, however few CTAs are resident.

A first wave. Only CTA c begins with task c, so every CTA must be resident. The tasks of the wave must be satisfied by
posts of the wave alone, in any order, since a CTA may draw all the tickets early, and hold them until its own task of
the wave is done. The tasks after the wave must be a linear extension, as for tickets.

A task occupies its CTA from its first wait to its last one, and posts after all of them. So the positions of the waits
within the task do not matter here; they are treated as if all came before it.

Static queues. Some order of all tasks that keeps each queue's order must satisfy each wait with posts of earlier tasks.
The assignment's own order, rank by rank, is tried first; if it fails, the symbolic run decides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.tile_graph import TaskGraph
from tuner.core.plan.table.distinct import distinct_rows
from tuner.core.plan.table.header import FIRST_WAVE, STATIC, TICKET
from tuner.core.plan.table.words import Plan
from tuner.core.proof.symbolic_run import Progress, Protocol
from tuner.errors import LivenessError, SafetyError

Ints = npt.NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max


def task_name(plan: Plan, graph: TaskGraph, task: int) -> str:
    """``task 7 (down tile 0,3)``, or ``task 7 (down tile 0,3 part 1 of 2)``."""
    op, tile_m, tile_n = plan.tasks[task, :3].tolist()
    part, num_parts = plan.tasks[task, 6:8].tolist()
    parts = f" part {part} of {num_parts}" if num_parts else ""
    return f"task {task} ({graph.name_of(op)} tile {tile_m},{tile_n}{parts})"


def used_waits(plan: Plan) -> Ints:
    """Indices of the wait records that some task uses."""
    covered = np.zeros(len(plan.waits) + 1, dtype=np.int64)
    np.add.at(covered, plan.tasks[:, 3], 1)
    np.add.at(covered, plan.tasks[:, 4], -1)
    return np.flatnonzero(np.cumsum(covered[:-1]) > 0)


def post_totals(plan: Plan) -> Ints:
    """[num_signals] posts that each signal gets in one launch, one per tile."""
    posts = plan.tasks[plan.leader == np.arange(plan.num_tasks), 5]
    return np.bincount(posts[posts >= 0], minlength=plan.num_signals).astype(np.int64)


def range_reduce(ufunc: np.ufunc, values: Ints, begin: Ints, end: Ints) -> Ints:
    """ufunc over values[begin : end] for each pair; every range has at least one element."""
    padded = np.append(values, values[-1:])  # so that an end of len(values) is also a valid index
    bounds = np.stack((begin, end), axis=1).ravel()
    return np.asarray(ufunc.reduceat(padded, bounds)[::2], dtype=np.int64)


def check_epochs(plan: Plan, graph: TaskGraph) -> None:
    """Checks that each wait's `posts_per_launch` is the number of posts of its signals, and its threshold no higher.

    Raises:
        LivenessError: a threshold, in this launch or the next, is never reached.
        SafetyError: the next launch's waits would end too early.
    """
    used = used_waits(plan)
    if not used.size:
        return
    totals = post_totals(plan)
    begin, end, threshold, per_launch, _ = plan.waits[used].astype(np.int64).T
    least, most = (range_reduce(ufunc, totals, begin, end) for ufunc in (np.minimum, np.maximum))
    rules = (
        (threshold > least, np.argmin, threshold, LivenessError("a threshold is never reached", "expects")),
        (per_launch > least, np.argmin, per_launch, LivenessError("the next launch never starts", "counts on")),
        (per_launch < most, np.argmax, per_launch, SafetyError("the next launch stops waiting too early", "counts")),
    )
    for broken, extreme, expected, error in rules:
        if broken.any():
            i = int(np.flatnonzero(broken)[0])
            signal = int(begin[i] + extreme(totals[begin[i] : end[i]]))
            who = task_name(plan, graph, _first_user(plan, int(used[i])))
            seen = f"signal {signal}, which gets {totals[signal]} posts per launch"
            raise type(error)(error.problem, f"{who} waits on {seen}; the wait {error.witness} {expected[i]}")


def _first_user(plan: Plan, wait: int) -> int:
    return int(np.flatnonzero((plan.tasks[:, 3] <= wait) & (wait < plan.tasks[:, 4]))[0])


def queue_position(plan: Plan) -> Ints:
    """[num_tasks] position of each task in the order that is tried first: tickets, or rank by rank over the queues."""
    if plan.assignment != STATIC:
        return np.arange(plan.num_tasks, dtype=np.int64)
    lengths: Ints = plan.queues[1:].astype(np.int64) - plan.queues[:-1]
    queue = np.repeat(np.arange(lengths.size, dtype=np.int64), lengths)
    rank = np.arange(plan.num_tasks, dtype=np.int64) - plan.queues[queue]
    return rank * lengths.size + queue


def late_tasks(plan: Plan, position: Ints) -> Ints:
    """Tasks that come before a post that they wait for, in the order of `position`."""
    waiting = np.flatnonzero(plan.tasks[:, 4] > plan.tasks[:, 3])
    if not waiting.size:
        return waiting
    waits = distinct_rows(plan.waits[:, :3])
    records = waits.rows
    posting = np.flatnonzero((plan.tasks[:, 5] >= 0) & (plan.leader == np.arange(plan.num_tasks)))
    signal = plan.tasks[posting, 5].astype(np.int64)
    posted = np.full(plan.num_tasks, -1, dtype=np.int64)  # a tile posts after its last part
    np.maximum.at(posted, plan.leader, position)
    by_signal = np.lexsort((posted[posting], signal))
    post_position = np.append(posted[posting][by_signal], _NEVER)
    first_post = np.concatenate(([0], np.cumsum(post_totals(plan))))
    ready = np.full(len(records), -1, dtype=np.int64)
    for needed in np.unique(records[:, 2]):
        if needed <= 0:
            continue
        slot = first_post[:-1] + needed - 1
        reached = np.where(slot < first_post[1:], post_position[np.minimum(slot, posting.size)], _NEVER)
        mine = records[:, 2] == needed
        ready[mine] = range_reduce(np.maximum, reached, records[mine, 0], records[mine, 1])
    lists = distinct_rows(plan.tasks[waiting, 3:5])
    over = range_reduce(np.maximum, ready[waits.of], *lists.rows.T)
    return waiting[over[lists.of] >= position[waiting]]


def check_liveness(plan: Plan, graph: TaskGraph, protocol: Protocol | None = None) -> None:
    """Checks that every task starts, in every interleaving.

    Raises:
        LivenessError: a wait is never over; the witness is the cycle of waits.
    """
    late = late_tasks(plan, queue_position(plan))
    if not late.size:
        return
    protocol = protocol or Protocol(plan)
    if plan.assignment == FIRST_WAVE and (late < plan.num_ctas).all():
        progress = protocol.run_wave()
    else:  # if tasks are drawn, the check above is exact; running the table on one CTA finds the cycle
        progress = protocol.run(num_ctas=plan.num_ctas if plan.assignment == STATIC else 1)
    if progress.blocked:
        cycle = _cycle(plan, graph, progress)
        first = cycle[0][0].partition(" (")[0]
        steps = [f"{who} {why}" for who, why in cycle]
        raise LivenessError("the plan deadlocks", "; ".join([*steps, f"and so back to {first}"]), cycle)


def _cycle(plan: Plan, graph: TaskGraph, progress: Progress) -> tuple[tuple[str, str], ...]:
    """Follows from a blocked task to its missing signal, and to the head of the queue that contains its post, until a
    task repeats; returns each task on the path, and why it waits."""
    ticket = "a later ticket than"
    behind_in = {STATIC: "which comes after", TICKET: ticket, FIRST_WAVE: ticket}
    head_of = {_queue_of(plan, task): task for task in progress.blocked}
    task, steps = next(iter(progress.blocked)), dict[int, tuple[str, str]]()
    while task not in steps:
        signal, needed = _lacking(plan, task, progress.posts)
        pending = np.flatnonzero(plan.tasks[:, 5] == signal)
        poster = next(int(p) for p in pending if not progress.started[p])
        queue = _queue_of(plan, poster)
        head = head_of.get(queue, task)  # in a wave: the CTA that waits for a ticket may have drawn that ticket itself
        step = f"waits for signal {signal} ({progress.posts[signal]} of {needed} posts)"
        step += f", which {task_name(plan, graph, poster)} would post"
        if poster != head:
            behind = task_name(plan, graph, head)
            step += f", {behind_in[plan.assignment]} {behind}"
            step += f" in queue {queue}" if plan.assignment == STATIC else ""
        steps[task] = task_name(plan, graph, task), step
        task = head
    circle = list(steps)[list(steps).index(task) :]
    return tuple(steps[one] for one in circle)


def _queue_of(plan: Plan, task: int) -> int:
    if plan.assignment == FIRST_WAVE:
        return task if task < plan.num_ctas else -1
    return int(np.searchsorted(plan.queues, task, side="right")) - 1 if plan.assignment == STATIC else 0


def _lacking(plan: Plan, task: int, posts: list[int]) -> tuple[int, int]:
    """A signal below the threshold of one of the task's waits, and that threshold."""
    for begin, end, needed, *_ in plan.waits[plan.tasks[task, 3] : plan.tasks[task, 4]].tolist():
        for signal in range(begin, end):
            if posts[signal] < needed:
                return signal, needed
    raise AssertionError(f"task {task} was blocked, but is missing nothing")
