"""First guesses of a search with a pair of convolutions, and the distance between pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter

from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AroundOp
from tuner.ops.conv.pair.costs import launch_us
from tuner.ops.conv.pair.geometry import geometry_of
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.plans import plan_of
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.search.launch_op import LaunchOpSearch

#: First guesses of the tile ops among which the one with the fewest tasks is chosen.
_NUM_TILES = 4
#: Fields that change the kernel's structure.
_FIXED = attrgetter("second.residual", "first_kernel", "first_stride", "second_kernel", "second_stride")


def guesses(space: AroundOp, tiles: Iterator[Schedule]) -> Iterator[Schedule]:
    """All schedules, the fastest by their forecast first: each with the tile ops' first guess, and with the one of the
    first few with the fewest tasks, which leaves SMs on which the pair's CTAs load filters meanwhile."""
    some = [*islice(tiles, _NUM_TILES)]
    front: dict[Schedule | None, None] = {None: None}
    if some:
        front = dict.fromkeys((some[0], min(some, key=lambda one: _num_tasks(space, one))))
    return (space.joined(one, tile) for one in ranked(space) for tile in front)


def _num_tasks(space: AroundOp, tiles: Schedule) -> int:
    """Tasks of the tile ops."""
    chosen = tiles.tiling
    shapes = enumerate(zip(space.workload.tile_ops, chosen.tiles, strict=True))
    parts = ((math.prod(op.tile_grid(tile.m, tile.n)), chosen.num_parts(index)) for index, (op, tile) in shapes)
    return chosen.cluster_k * sum(math.prod(one) for one in parts)


def ranked(space: AroundOp) -> list[ConvPairSchedule]:
    """The offered schedules, the fastest by their forecast first."""
    op, gpu = space.op, space.gpu
    return sorted(space.offered, key=lambda one: launch_us(op, one, plan_of(op, one, gpu), gpu))


def first(space: AroundOp, tiles: Schedule | None) -> ConvPairSchedule | None:
    """The fastest by its forecast."""
    return next(iter(ranked(space)), None)


def adapt(space: AroundOp, found: ConvPairSchedule, of: ConvPairOp) -> ConvPairSchedule | None:
    """The same schedule, if it is offered."""
    return found if found in space.offered else None


def distance(ops: Sequence[ConvPairOp], others: Sequence[ConvPairOp]) -> float:
    """The difference in sizes, in powers of two; infinity between filters of other sizes or strides."""
    if len(ops) != len(others) or any(_FIXED(one) != _FIXED(other) for one, other in zip(ops, others, strict=True)):
        return math.inf
    pairs = [pair for one, other in zip(ops, others, strict=True) for pair in zip(one.sizes, other.sizes, strict=True)]
    return sum(abs(math.log2(one / other)) for one, other in pairs)


def _compiled(one: ConvPairSchedule) -> list[float]:
    sides = [math.log2(one.rows), math.log2(one.columns)]
    return [*sides, math.log2(one.warpgroups), float(one.together)]


def _planned(one: ConvPairSchedule, op: ConvPairOp, gpu: Gpu) -> list[float]:
    """Rounds of tiles, and the columns of both products."""
    geometry, plan = geometry_of(op, one), plan_of(op, one, gpu)
    rounds = -(-plan.num_tiles // (plan.num_ctas * one.num_teams))
    return [math.log2(value) for value in (rounds, geometry.patch.products, geometry.middle.products)]


SEARCH = LaunchOpSearch(
    guesses=guesses,
    first=first,
    adapt=adapt,
    distance=distance,
    compiled_features=_compiled,
    plan_features=_planned,
)
