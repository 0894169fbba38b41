"""Liveness if the parts of a tile wait for each other: each adds up a share of the tile, from sums that all the others
have stored.

A part stores its sums when its waits for signals are over and its products are done; it occupies its CTA until all
parts of its tile have done so. So a tile is done when its last part has been reached, and with it all of its tasks.

Why this is sufficient. Define a task's turn as the position of the last part of its tile, or its own position for a
whole tile. Assume that turns increase along each queue, and that each wait is satisfied by posts of tiles with an
earlier turn. Then tiles finish in the order of their turns: when all earlier ones have finished, each part of the next
tile is at the head of its queue, and its waits are over; all of them run, and store their sums. Two parts of one tile
in one queue have the same turn, which does not increase.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.tile_graph import TaskGraph, TileGraph
from tuner.core.plan.table.header import STATIC
from tuner.core.plan.table.words import Plan
from tuner.core.proof.liveness import late_tasks, queue_position, task_name
from tuner.core.schedule.tiling import PartSums
from tuner.errors import CoverageError, LivenessError

Ints = npt.NDArray[np.int64]


def waits_for_parts(plan: Plan, graph: TileGraph) -> bool:
    """Whether parts of the plan's tiles wait for each other."""
    return graph.tiling.part_sums is PartSums.SCATTERED and bool((plan.tasks[:, 7] > 0).any())


def check_shares(plan: Plan, graph: TaskGraph) -> None:
    """Checks that a split tile has all of its parts: the kernel was compiled for so many shares, and no part would
    add up a missing part's share.

    Raises:
        CoverageError: a tile has fewer parts.
    """
    parts_of = {op: graph.num_parts(op) for op in graph.op_indices}
    most = np.array([parts_of[op] for op in plan.tasks[:, 0].tolist()])
    if (fewer := np.flatnonzero((plan.tasks[:, 7] > 0) & (plan.tasks[:, 7] < most))).size:
        task = int(fewer[0])
        which = f"{task_name(plan, graph, task)} is one of {plan.tasks[task, 7]} parts"
        raise CoverageError(
            "a share of a tile is added by no part", f"{which}, but each of {most[task]} would add one share"
        )


def turns(plan: Plan) -> Ints:
    """[num_tasks] the position of the last part of a task's tile, in the order in which queues are filled."""
    position = queue_position(plan)
    last = np.full(plan.num_tasks, -1, dtype=np.int64)
    np.maximum.at(last, plan.leader, position)
    return last[plan.leader]


def check_parts_at_once(plan: Plan, graph: TaskGraph) -> None:
    """Checks that every task starts, in every interleaving, even though parts of a tile wait for each other.

    Raises:
        LivenessError: parts are not in queues, or queues have tiles in different orders, or a wait may never end.
    """
    if plan.assignment != STATIC:
        raise LivenessError(
            "parts wait for each other", ("they are drawn: only queues run all parts of a tile at the same time")
        )
    turn = turns(plan)
    queue = np.searchsorted(plan.queues, np.arange(plan.num_tasks), side="right")
    stuck = np.flatnonzero((np.diff(turn) <= 0) & (np.diff(queue) == 0))
    if stuck.size:
        one, other = (task_name(plan, graph, int(stuck[0]) + i) for i in range(2))
        where = f"{other} comes after {one} in queue {int(queue[stuck[0]]) - 1}"
        raise LivenessError("the plan deadlocks", f"{where}, and other parts of these tiles come in the opposite order")
    if (late := late_tasks(plan, turn)).size:
        who = task_name(plan, graph, int(late[0]))
        raise LivenessError("the plan deadlocks", f"{who} waits for a tile that cannot finish before its own")
