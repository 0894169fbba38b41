"""Broken plans: one random change to a plan's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from tuner.core.plan.table.header import FIRST_WAVE, STATIC
from tuner.core.plan.table.words import TASK_FIELDS, Plan, Words


def rebuilt(plan: Plan, queues: list[list[Words]]) -> Plan:
    """The plan with different queues of tasks; with tickets, there is only one queue."""
    tasks = [task for queue in queues for task in queue]
    table = np.array(tasks, dtype=np.int32).reshape(-1, TASK_FIELDS)
    bounds = np.cumsum([0, *map(len, queues)]).astype(np.int32)
    if plan.assignment == STATIC:
        return replace(plan, tasks=table, queues=bounds)
    return replace(plan, tasks=table, num_first_tasks=min(plan.num_first_tasks, len(table)))


def lists(plan: Plan) -> list[list[Words]]:
    """Copies of the queues' tasks; one list for tickets."""
    bounds = plan.queues.tolist() if plan.assignment == STATIC else [0, plan.num_tasks]
    return [[task.copy() for task in plan.tasks[a:b]] for a, b in pairwise(bounds)]


def drop(plan: Plan, task: int) -> Plan:
    """Removes one task."""
    queues = lists(plan)
    return rebuilt(plan, [[t for i, t in q] for q in _numbered(queues, lambda i: i != task)])


def double(plan: Plan, task: int) -> Plan:
    """Duplicates one task."""
    queues = lists(plan)
    queues[-1].append(plan.tasks[task].copy())
    return rebuilt(plan, queues)


def move(plan: Plan, task: int, queue: int, place: int) -> Plan:
    """Moves one task to another position."""
    queues = [[t for _, t in q] for q in _numbered(lists(plan), lambda i: i != task)]
    queues[queue].insert(place, plan.tasks[task].copy())
    return rebuilt(plan, queues)


def edit(plan: Plan, task: int, column: int, value: int) -> Plan:
    """Changes one word of a task."""
    tasks = plan.tasks.copy()
    tasks[task, column] = value
    return replace(plan, tasks=tasks)


def edit_wait(plan: Plan, wait: int, column: int, value: int) -> Plan:
    """Changes one word of a wait."""
    waits = plan.waits.copy()
    waits[wait, column] = value
    return replace(plan, waits=waits)


def with_true_steps(plan: Plan) -> Plan:
    """Recomputes the posts per launch of each wait whose signals have equal counts."""
    posts = np.array(list({tuple(task[:3]): task[5] for task in plan.tasks.tolist()}.values()))  # one task of each tile
    totals = np.bincount(posts[posts >= 0], minlength=plan.num_signals)
    waits = plan.waits.copy()
    for wait in waits:
        counts = set(totals[wait[0] : wait[1]].tolist())
        if len(counts) == 1:
            wait[3] = counts.pop()
    return replace(plan, waits=waits)


def _numbered(queues: list[list[Words]], keep: Callable[[int], bool]) -> Iterator[list[tuple[int, Words]]]:
    """Each queue's tasks with their indices, without the removed ones."""
    number = 0
    for queue in queues:
        kept: list[tuple[int, Words]] = []
        for task in queue:
            if keep(number):
                kept.append((number, task))
            number += 1
        yield kept


@st.composite
def mutants(draw: st.DrawFn, plan: Plan) -> Plan:
    """One change, and sometimes a second; some leave the plan legal."""
    for _ in range(draw(st.integers(1, 2))):
        plan = draw(_mutant(plan))
        if draw(st.booleans()):
            plan = with_true_steps(plan)
    return plan


@st.composite
def _mutant(draw: st.DrawFn, plan: Plan) -> Plan:
    task = draw(st.integers(0, plan.num_tasks - 1)) if plan.num_tasks else 0
    kinds = ["move", "move", "unwait", "post", "drop", "double", "grid", "order"]
    if len(plan.waits):
        kinds += ["threshold", "range", "step", "split", "threshold", "place", "place"]
    match draw(st.sampled_from(kinds)) if plan.num_tasks else "grid":
        case "move":
            queue = draw(st.integers(0, max(1, plan.queues.size - 1) - 1))
            return move(plan, task, queue, draw(st.integers(0, plan.num_tasks)))
        case "unwait":
            return edit(plan, task, 4, int(plan.tasks[task, 3]))
        case "post":
            return edit(plan, task, 5, draw(st.integers(-1, plan.num_signals - 1)))
        case "drop":
            return drop(plan, task)
        case "double":
            return double(plan, task)
        case "threshold":
            wait = draw(st.integers(0, len(plan.waits) - 1))
            return edit_wait(plan, wait, 2, int(plan.waits[wait, 2]) + draw(st.sampled_from((-2, -1, 1))))
        case "range":
            wait = draw(st.integers(0, len(plan.waits) - 1))
            begin, end = sorted(draw(st.lists(st.integers(0, plan.num_signals), min_size=2, max_size=2, unique=True)))
            return edit_wait(edit_wait(plan, wait, 0, begin), wait, 1, end)
        case "step":
            wait = draw(st.integers(0, len(plan.waits) - 1))
            return edit_wait(plan, wait, 3, int(plan.waits[wait, 3]) + draw(st.sampled_from((-1, 1))))
        case "place":
            wait = draw(st.integers(0, len(plan.waits) - 1))
            return edit_wait(plan, wait, 4, int(plan.waits[wait, 4]) + draw(st.sampled_from((-1, 1))))
        case "order":
            return replace(plan, strided_parts=not plan.strided_parts)
        case "split":
            return _split(plan, task)
        case _ if plan.assignment == FIRST_WAVE:
            num_ctas = draw(st.integers(1, min(4, plan.num_tasks)))
            return replace(plan, num_ctas=num_ctas, num_first_tasks=num_ctas)
        case _:
            return plan if plan.assignment == STATIC else replace(plan, num_ctas=draw(st.integers(1, 4)))


def _split(plan: Plan, task: int) -> Plan:
    """Splits a task's first wait over several signals into one wait for each."""
    begin, end = plan.tasks[task, 3:5].tolist()
    if begin == end:
        return plan
    first, last, *rest = plan.waits[begin].tolist()
    waits = np.array([[s, s + 1, *rest] for s in range(first, last)], dtype=np.int32)
    tasks = plan.tasks.copy()
    tasks[task, 3], tasks[task, 4] = len(plan.waits), len(plan.waits) + len(waits)
    return replace(plan, tasks=tasks, waits=np.concatenate((plan.waits, waits)))
