"""The space of a workload with launch ops: the schedules of each launch op, and those of tile ops."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, product
from math import prod
from typing import Any, Protocol

from tuner.core.legal.legality import engine_problem, is_legal, workload_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.joined import joined_workload
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import LaunchOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.levels import LaunchOpSchedule
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.core.space.space import Space
from tuner.errors import IllegalSchedule, InvalidInput

#: Number of neighbours taken from a launch op, and from the ops after it, in turn.
_IN_TURN = 4
#: Why an engine that can run every op has no tiling.
_NO_TILES = "no tiles of it are legal for every op"


class OpSpace(Protocol):
    """Proposed schedules of one launch op."""

    @property
    def op(self) -> Any:
        """The launch op."""

    @property
    def offered(self) -> tuple[Any, ...]:
        """All legal schedules of the offered values."""

    def near(self, one: Any) -> list[Any]:
        """The legal schedules that differ from `one` in one axis."""


class OfferedByKind(Protocol):
    """The file ``space`` that a kind of launch op provides."""

    def OpSpace(self, *, workload: Workload, gpu: Gpu, op: Any) -> OpSpace:  # noqa: N802  # a class
        """Proposed schedules of an op of the kind."""


def space_of(workload: Workload, gpu: Gpu, op: LaunchOp) -> OpSpace:
    """Proposed schedules of a launch op.

    Raises:
        IllegalSchedule: its kind proposes none.
    """
    part = part_of(op.KIND, "space")
    if part is None:
        raise IllegalSchedule(f"{op.describe()}: this program cannot search schedules of this kind")
    found: OpSpace = part.OpSpace(workload=workload, gpu=gpu, op=op)
    return found


class JointSpace:
    """Every legal schedule of the offered values.

    Raises:
        IllegalSchedule: none is legal on the GPU.
    """

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        if problem := workload_problem(workload, gpu):
            raise IllegalSchedule(problem)
        self.workload = workload
        self.gpu = gpu
        #: The space of each launch op.
        self.own = tuple(space_of(workload, gpu, op) for op in workload.launch_ops)
        #: The space of the tile ops alone; None if there are none.
        self.tiles = Space(workload, gpu) if workload.tile_ops else None

    @cached_property
    def num_schedules(self) -> int:
        """Legal schedules of the offered values."""
        return prod(len(one.offered) for one in self.own) * (self.tiles.num_schedules if self.tiles else 1)

    @property
    def is_empty(self) -> bool:
        """Whether no schedule of the proposed values is legal."""
        return not all(one.offered for one in self.own) or (self.tiles is not None and self.tiles.is_empty)

    def joined(self, own: Sequence[LaunchOpSchedule], tiles: Schedule | None) -> Schedule:
        """The schedules of each launch op, and of tile ops if there are any, as one schedule."""
        return Schedule(ops=tuple(own)) if tiles is None else tiles.but(launch_ops=own)

    def __iter__(self) -> Iterator[Schedule]:
        for own in product(*(one.offered for one in self.own)):
            for tiles in self.tiles or (None,):
                yield self.joined(own, tiles)

    def sample(self, rng: random.Random, count: int) -> list[Schedule]:
        """At most `count` different legal schedules, each with a different launch as long as there are more."""
        offered = [one.offered for one in self.own]
        if self.tiles is None:
            drawn = zip(*(_some(rng, one, count, self.num_schedules) for one in offered), strict=True)
            return list(dict.fromkeys(self.joined(own, None) for own in drawn))
        tiles = self.tiles.sample(rng, count)
        return list(dict.fromkeys(self.joined([rng.choice(one) for one in offered], one) for one in tiles))

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """The legal schedules that differ in one axis, of each launch op and of the tile ops in turn."""
        others: list[Schedule] = []
        if self.tiles is not None:
            alone = self.tiles.neighbours(schedule.but(launch_ops=()))
            others = [self.joined(schedule.launch_ops, one) for one in alone]
        for index, one in reversed(list(enumerate(self.own))):
            chosen = schedule.launch_ops
            near = [
                schedule.but(launch_ops=(*chosen[:index], other, *chosen[index + 1 :]))
                for other in one.near(chosen[index])
            ]
            others = list(_in_turns(near, others))
        return others

    def is_legal(self, schedule: Schedule) -> bool:
        """Whether the schedule is legal, proposed or not."""
        return is_legal(self.workload, self.gpu, schedule)

    def around(self, index: int, others: Sequence[LaunchOpSchedule] = ()) -> AroundOp:
        """The view of launch op `index`, with the given schedules of the other launch ops, in order."""
        return AroundOp(space=self, index=index, others=tuple(others))


@dataclass(frozen=True, kw_only=True)
class AroundOp:
    """A space seen from one of its launch ops: the schedules of the others are fixed."""

    space: JointSpace
    #: The op's index among the launch ops.
    index: int
    #: The schedules of the other launch ops, in order.
    others: tuple[LaunchOpSchedule, ...] = ()

    @property
    def workload(self) -> Workload:
        """The workload with all ops."""
        return self.space.workload

    @property
    def gpu(self) -> Gpu:
        """The GPU of the space."""
        return self.space.gpu

    @property
    def op(self) -> Any:
        """The launch op from which the space is seen."""
        return self.space.own[self.index].op

    @property
    def offered(self) -> tuple[Any, ...]:
        """Proposed schedules of that op."""
        return self.space.own[self.index].offered

    @property
    def tiles(self) -> Space | None:
        """The space of only the tile ops; None if there are none."""
        return self.space.tiles

    def joined(self, one: LaunchOpSchedule, tiles: Schedule | None) -> Schedule:
        """The schedule `one` of that op and those of tile ops, combined with the other launch ops' schedules."""
        return self.space.joined((*self.others[: self.index], one, *self.others[self.index :]), tiles)

    def is_legal(self, schedule: Schedule) -> bool:
        """Whether the schedule is legal, proposed or not."""
        return self.space.is_legal(schedule)


#: What a search may choose from.
AnySpace = Space | JointSpace


@lru_cache(maxsize=2)  # as for `space_of`
def any_space_of(workload: Workload, gpu: Gpu) -> AnySpace:
    """The space of any workload, shared by all callers.

    Raises:
        IllegalSchedule: none is legal on the GPU.
    """
    return _space_of(workload, gpu)


@lru_cache(maxsize=8)
def joined_space_of(workload: Workload, gpu: Gpu) -> AnySpace | None:
    """The space of the op that computes all ops of the workload; None if there is no such op, or nothing is legal."""
    try:
        return _space_of(joined_workload(workload), gpu)
    except (InvalidInput, IllegalSchedule):
        return None


def _space_of(workload: Workload, gpu: Gpu) -> AnySpace:
    space = JointSpace(workload, gpu) if workload.launch_ops else Space(workload, gpu)
    if space.is_empty:
        what = f"no schedule of {workload.describe()} is legal on {gpu.name}"
        reasons = [f"{one}: {engine_problem(workload, gpu, one) or _NO_TILES}" for one in Engine]
        why = f" ({'; '.join(reasons)})" if workload.tile_ops else ""
        raise IllegalSchedule(f"{what}{why}: change the sizes, or take another target")
    return space


def _some(rng: random.Random, offered: tuple[LaunchOpSchedule, ...], count: int, most: int) -> list[LaunchOpSchedule]:
    """`count` of the offered schedules, or `most` if that is less: different ones as far as possible."""
    count = min(count, most)
    some = rng.sample(offered, min(count, len(offered)))
    return some + rng.choices(offered, k=count - len(some))


def _in_turns(near: Sequence[Schedule], others: Sequence[Schedule]) -> Iterator[Schedule]:
    rest = iter(others)
    for begin in range(0, len(near), _IN_TURN):
        yield from near[begin : begin + _IN_TURN]
        yield from islice(rest, _IN_TURN)
    yield from rest
