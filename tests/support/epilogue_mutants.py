"""Faults in what a task reads in its epilogue: each is one change to a plan's tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.support import mutants
from tuner.core.plan.table.words import EPILOGUE_STEP, Plan


def _wait_removed(plan: Plan, rng: random.Random) -> Plan:
    """A task loses its last wait, if possible one for its epilogue."""
    waiting = np.flatnonzero(plan.tasks[:, 4] > plan.tasks[:, 3])
    if not waiting.size:
        return plan
    late = waiting[plan.waits[plan.tasks[waiting, 4] - 1, 4] == EPILOGUE_STEP].tolist()
    task = rng.choice(late or waiting.tolist())
    return mutants.edit(plan, task, 4, int(plan.tasks[task, 4]) - 1)


def _tiles_exchanged(plan: Plan, rng: random.Random) -> Plan:
    """Two tasks of an op compute each other's tile but keep their signals, so squares are written to the other's
    slot."""
    tasks = plan.tasks.copy()
    pairs = [
        (one, other)
        for one in range(plan.num_tasks)
        for other in range(one)
        if tasks[one, 0] == tasks[other, 0] and (tasks[one, 1:3] != tasks[other, 1:3]).any()
    ]
    one, other = rng.choice(pairs or [(0, 0)])
    columns = [1, 2, *([3, 4] if rng.random() < 0.5 else [])]
    tasks[np.ix_([one, other], columns)] = tasks[np.ix_([other, one], columns)]
    return replace(plan, tasks=tasks)


def _share_missing(plan: Plan, rng: random.Random) -> Plan:
    """A task gets its own copy of its last wait, which requires one post or one signal fewer."""
    waiting = np.flatnonzero(plan.tasks[:, 4] > plan.tasks[:, 3]).tolist()
    if not waiting:
        return plan
    task = rng.choice(waiting)
    begin, end = plan.tasks[task, 3:5].tolist()
    own = plan.waits[begin:end].copy()
    if own[-1, 1] - own[-1, 0] > 1 and rng.random() < 0.5:
        own[-1, 1] -= 1
    else:
        own[-1, 2] = max(0, own[-1, 2] - 1)
    tasks = plan.tasks.copy()
    tasks[task, 3:5] = len(plan.waits), len(plan.waits) + len(own)
    return replace(plan, tasks=tasks, waits=np.concatenate((plan.waits, own)))


def _wait_moved(plan: Plan, rng: random.Random) -> Plan:
    """A wait for A is moved to the epilogue, or a wait for the epilogue to the first k-step."""
    if not len(plan.waits):
        return plan
    wait = rng.randrange(len(plan.waits))
    return mutants.edit_wait(plan, wait, 4, 0 if plan.waits[wait, 4] == EPILOGUE_STEP else EPILOGUE_STEP)


OF_EPILOGUES: dict[str, Callable[[Plan, random.Random], Plan]] = {
    "epilogue wait removed": _wait_removed,
    "tiles exchanged": _tiles_exchanged,
    "share missing": _share_missing,
    "wait moved to the epilogue": _wait_moved,
}
