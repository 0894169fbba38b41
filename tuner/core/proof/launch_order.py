"""The order of a candidate's launches, by the positions of their ops in the workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TypeVar

from tuner.core.problem.workload import Workload

Shared = TypeVar("Shared")
Own = TypeVar("Own")


def in_launch_order(
    workload: Workload, of_tile_ops: Iterable[tuple[Sequence[int], Shared]], of_launch_ops: Iterable[Own]
) -> list[tuple[int, Shared | Own]]:
    """All launches in the order in which they are enqueued, each with the position of its first op in `Workload.ops`.

    Args:
        workload: the workload of the launches. None of them spans a launch op; see `check_launches`.
        of_tile_ops: launches that tile ops share, each with the indices of its tile ops.
        of_launch_ops: the launch of each launch op, in order; or none at all.
    """
    shared = ((workload.tile_places[min(ops)], launch) for ops, launch in of_tile_ops)
    own = zip(workload.launch_places, of_launch_ops, strict=False)
    return sorted((*shared, *own), key=itemgetter(0))
