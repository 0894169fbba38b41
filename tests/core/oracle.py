"""A second judge for tiny plans: reads the words itself and walks every reachable state."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tuner.core.tiles import TileGraph


class Task(NamedTuple):
    op: int
    row: int
    col: int
    waits: tuple[tuple[int, int, int, int], ...]
    post: int


class Table(NamedTuple):
    tasks: list[Task]
    #: Per CTA; for tickets the one list that all draw from.
    queues: list[list[int]]
    num_ctas: int
    is_static: bool


def read(words: list[int]) -> Table:
    """The tables of a plan's words."""
    num_tasks, _, num_ctas, assignment, queue_at, task_at, wait_at, _ = words[2:10]
    tasks = []
    for at in range(task_at, task_at + 8 * num_tasks, 8):
        op, row, col, begin, end, post = words[at : at + 6]
        waits = []
        for w in range(begin, end):
            signal_begin, signal_end, threshold, per_launch = words[wait_at + 4 * w : wait_at + 4 * w + 4]
            waits.append((signal_begin, signal_end, threshold, per_launch))
        tasks.append(Task(op, row, col, tuple(waits), post))
    if assignment == 0:
        bounds = words[queue_at : queue_at + num_ctas + 1]
        queues = [list(range(bounds[i], bounds[i + 1])) for i in range(num_ctas)]
    else:
        queues = [list(range(num_tasks))]
    return Table(tasks, queues, num_ctas, assignment == 0)


def faults(words: list[int], graph: TileGraph, resident: int | None = None) -> set[str]:
    """Of coverage, liveness, safety, residency: what the plan breaks where `resident` CTAs fit at once.

    Static queues with signals are launched cooperatively, which a device refuses where not all CTAs fit.
    """
    table = read(words)
    wanted = Counter((op, r, c) for op, (rows, cols) in graph.grids.items() for r in range(rows) for c in range(cols))
    if Counter((task.op, task.row, task.col) for task in table.tasks) != wanted:
        return {"coverage"}
    found = _epoch_faults(table)
    if resident is not None and table.is_static and words[3] > 0 and table.num_ctas > resident:
        found.add("residency")
    producers = _producers(table, graph)
    for num_resident in [table.num_ctas] if table.is_static else range(1, table.num_ctas + 1):
        found |= _explore(table, producers, num_resident)
    return found


def _epoch_faults(table: Table) -> set[str]:
    """What goes wrong in the second launch, whose signals start at what they got in the first."""
    posts = Counter(task.post for task in table.tasks)
    found = set()
    for task in table.tasks:
        for begin, end, _, per_launch in task.waits:
            for signal in range(begin, end):
                if per_launch != posts[signal]:
                    found.add("liveness" if per_launch > posts[signal] else "safety")
    return found


def _producers(table: Table, graph: TileGraph) -> list[set[int]]:
    """[task] the tasks whose rows of the output it reads overlap its own rows."""
    ops, tiles = graph.workload.ops, graph.tiling.tiles

    def rows(task: Task) -> set[int]:
        height = tiles[task.op].m
        return set(range(task.row * height, min((task.row + 1) * height, ops[task.op].m)))

    return [
        {
            index
            for index, other in enumerate(table.tasks)
            if ops[other.op].name == ops[task.op].source and rows(other) & rows(task)
        }
        for task in table.tasks
    ]


def _explore(table: Table, producers: list[set[int]], num_resident: int) -> set[str]:
    """Every state that `num_resident` CTAs can reach: a state is what is held, what is left, and what is done."""
    found: set[str] = set()
    lanes = len(table.queues)
    start = ((None,) * num_resident, (0,) * lanes, frozenset[int]())
    seen, todo = {start}, [start]
    while todo:
        held, heads, done = todo.pop()
        posts = Counter(table.tasks[task].post for task in done)
        moved = False
        for cta in range(num_resident):
            task = held[cta]
            lane = cta if table.is_static else 0
            if task is None:
                if heads[lane] == len(table.queues[lane]):
                    continue
                taken = table.queues[lane][heads[lane]]
                after = (_put(held, cta, taken), _put(heads, lane, heads[lane] + 1), done)
            else:
                over = all(posts[s] >= needed for a, b, needed, _ in table.tasks[task].waits for s in range(a, b))
                if not over:
                    continue
                if producers[task] - done:
                    found.add("safety")
                after = (_put(held, cta, None), heads, done | {task})
            moved = True
            if after not in seen:
                seen.add(after)
                todo.append(after)
        if not moved and len(done) < len(table.tasks):
            found.add("liveness")
    return found


def _put(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])
