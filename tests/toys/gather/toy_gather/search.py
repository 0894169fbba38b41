"""First guesses of a search with a gather, and the distance between schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from toy_gather.op import GatherOp
from toy_gather.schedule import GatherSchedule
from tuner.extend import AroundOp, LaunchOpSearch, Schedule


def guesses(space: AroundOp, tiles: Iterator[Schedule]) -> Iterator[Schedule]:
    """Each schedule, combined with the tile ops' first guess."""
    shared = next(tiles, None)
    return (space.joined(one, shared) for one in space.offered)


def first(space: AroundOp, tiles: Schedule | None) -> GatherSchedule | None:
    """The first offered schedule."""
    return next(iter(space.offered), None)


def adapt(space: AroundOp, found: GatherSchedule, of: GatherOp) -> GatherSchedule | None:
    """The same schedule, if it is offered."""
    return found if found in space.offered else None


def distance(ops: Sequence[GatherOp], others: Sequence[GatherOp]) -> float:
    """The difference in rows, in powers of two."""
    if len(ops) != len(others):
        return math.inf
    return sum(abs(math.log2(one.m / other.m)) for one, other in zip(ops, others, strict=True))


SEARCH = LaunchOpSearch(
    guesses=guesses,
    first=first,
    adapt=adapt,
    distance=distance,
    compiled_features=lambda schedule: [math.log2(schedule.threads)],
    plan_features=lambda schedule, op, gpu: [math.log2(schedule.rows_per_cta)],
)
