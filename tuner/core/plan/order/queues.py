"""Queues: which tasks of the global order are in which CTA's queue, and the tail after whole waves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuner.core.schedule.ordering import Assignment, Ordering, SplitTiles

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Units of a partition.
PARTITION_EIGHTHS = 8


def num_first_ctas(num_ctas: int, partition: int) -> int:
    """CTAs of a partitioned grid that run the first op's tiles."""
    return max(1, min(num_ctas - 1, round(num_ctas * partition / PARTITION_EIGHTHS)))


def sides_of(ops: Ints | npt.NDArray[np.int32], num_ctas: int, partition: int) -> list[tuple[Ints, range]]:
    """The tasks of each side of a partition in order, or all tasks if there is none, and the CTAs that run them; `ops`
    has the op of each task."""
    is_first = ops == ops.min()
    if not partition or num_ctas == 1 or is_first.all():
        return [(np.arange(ops.size, dtype=np.int64), range(num_ctas))]
    num_first = num_first_ctas(num_ctas, partition)
    return [
        (np.flatnonzero(is_first), range(num_first)),
        (np.flatnonzero(~is_first), range(num_first, num_ctas)),
    ]


def tail_of(ops: Ints, num_ctas: int, partition: int = 0) -> Flags:
    """[tiles] whether each tile of the global order belongs to the last, incomplete wave; `ops` has the op of each
    tile. The last wave is what remains after whole waves of the grid, or of each side of a partition; all tiles if no
    wave is whole."""
    is_tail = np.zeros(ops.size, dtype=np.bool_)
    for tiles, ctas in sides_of(ops, num_ctas, partition):
        is_tail[tiles[tiles.size // len(ctas) * len(ctas) :]] = True
    return is_tail


def tails_of(ops: Ints, num_ctas: int) -> Flags:
    """[tiles] whether each tile belongs to the last, incomplete wave of its op, as if the op had the grid to itself."""
    is_tail = np.zeros(ops.size, dtype=np.bool_)
    for op in np.unique(ops):
        tiles = np.flatnonzero(ops == op)
        is_tail[tiles[tiles.size // num_ctas * num_ctas :]] = True
    return is_tail


def split_of(ops: Ints, num_ctas: int, ordering: Ordering) -> Flags | None:
    """[tiles] whether each tile of the global order may be split; None if all may."""
    if ordering.split_tiles is SplitTiles.ALL:
        return None
    is_each = ordering.split_tiles is SplitTiles.TAILS
    return tails_of(ops, num_ctas) if is_each else tail_of(ops, num_ctas, ordering.partition)


def queue_of_tasks(ops: Ints | npt.NDArray[np.int32], num_ctas: int, ordering: Ordering) -> Ints:
    """[num_tasks] the queue of each task of the global order."""
    index = np.arange(ops.size, dtype=np.int64)
    if ordering.assignment is Assignment.SHARES:
        return index * num_ctas // ops.size
    queue = np.empty(ops.size, dtype=np.int64)
    for tasks, ctas in sides_of(ops, num_ctas, ordering.partition):
        queue[tasks] = ctas.start + index[: tasks.size] % len(ctas)
    return queue
