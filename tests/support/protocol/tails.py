"""Which tiles of a launch stay whole when the tail is split, computed from the definition for the protocol test.

The tail of an order is its last, incomplete wave: what remains after assigning one tile to each CTA as often as
possible. Each launch has one; with a partition, each of its two sides has one. The order is taken from the plan's
words, but not the number of parts of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tuner.core.plan.table.header import STATIC
from tuner.core.plan.table.words import Plan

#: Op, tile row, tile column.
Tile = tuple[int, int, int]


def in_whole_waves(plan: Plan, partition: int) -> frozenset[Tile]:
    """The tiles of a launch outside its tail; with queues, those that were assigned round-robin."""
    whole: set[Tile] = set()
    for tasks, num_ctas in _sides(plan, partition):
        tiles = list(dict.fromkeys(map(tuple, plan.tasks[tasks, :3].tolist())))
        whole.update(tiles[: len(tiles) - len(tiles) % num_ctas])
    return frozenset(whole)


def in_whole_waves_of_each_op(plan: Plan) -> frozenset[Tile]:
    """The tiles outside their op's tail."""
    ((tasks, num_ctas),) = _sides(plan, 0)
    by_op: dict[int, dict[Tile, None]] = {}
    for tile in map(tuple, plan.tasks[tasks, :3].tolist()):
        by_op.setdefault(tile[0], {})[tile] = None
    return frozenset(tile for tiles in by_op.values() for tile in list(tiles)[: len(tiles) - len(tiles) % num_ctas])


def _sides(plan: Plan, partition: int) -> Iterator[tuple[npt.NDArray[np.int64], int]]:
    """The tasks of a side in the order in which they are assigned, and its CTAs; one side if there is no partition."""
    tasks = np.arange(plan.num_tasks)
    if plan.assignment != STATIC:
        yield tasks, plan.num_ctas
        return
    queue_of = np.repeat(np.arange(plan.num_ctas), np.diff(plan.queues))
    rank = tasks - plan.queues[queue_of]
    in_turns = np.lexsort((queue_of, rank))
    is_first = plan.tasks[:, 0] == plan.tasks[:, 0].min()
    if not partition or is_first.all() or plan.num_ctas == 1:
        yield in_turns, plan.num_ctas
        return
    for side in (is_first, ~is_first):
        # CTAs without a task have no effect: with such a CTA, all tiles of its side belong to the tail, or are whole.
        yield in_turns[side[in_turns]], len(set(queue_of[side].tolist()))
