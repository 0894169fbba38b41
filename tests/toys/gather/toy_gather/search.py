"""How a search begins with a gather, and how it compares its schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from toy_gather.op import GatherOp
from toy_gather.schedule import GatherSchedule
from tuner.extend import AroundOp, LaunchOpSearch, Schedule


def guesses(space: AroundOp, tiles: Iterator[Schedule]) -> Iterator[Schedule]:
    """Each schedule, the tile ops' first guess behind it."""
    shared = next(tiles, None)
    return (space.joined(one, shared) for one in space.offered)


def first(space: AroundOp, tiles: Schedule | None) -> GatherSchedule | None:
    """The first that is offered."""
    return next(iter(space.offered), None)


def adapt(space: AroundOp, found: GatherSchedule, of: GatherOp) -> GatherSchedule | None:
    """The same, where it is offered."""
    return found if found in space.offered else None


def distance(ops: Sequence[GatherOp], others: Sequence[GatherOp]) -> float:
    """By the rows, in powers of two."""
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
