"""Times of ops, as defined by their kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import Op
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile
from tuner.errors import IllegalSchedule


@dataclass(frozen=True, kw_only=True)
class TimedTask:
    """A task of a launch op's launch, with its times."""

    cta: int
    #: Its position in a chart of the launch: a row, and a column in it.
    tile: tuple[int, int]
    #: Start, arrival of its first bytes, end of computation, end of the store; microseconds since the launch began.
    times_us: tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class LaunchTimeline:
    """The tasks of a launch op's launch, with their times."""

    #: CTAs that have tasks.
    num_ctas: int
    #: CTA by CTA.
    tasks: tuple[TimedTask, ...]


class LibraryCosts(Protocol):
    """The module ``costs`` of any kind."""

    def library_us(self, ops: Sequence[Any], workload: Workload, gpu: Gpu) -> float:
        """Time of a vendor's library for all ops of the kind in a workload, microseconds."""


class TileCosts(LibraryCosts, Protocol):
    """The module ``costs`` of a kind of tile op that defines its task."""

    def task_us(self, op: Any, tile: Tile, chosen: Any, dtype: Dtype, gpu: Gpu) -> float:
        """Time of a task on an SM, microseconds. `chosen` has the choices that only the kind knows, or is
        None for the defaults."""


class Costs(LibraryCosts, Protocol):
    """The module ``costs`` of a kind of launch op."""

    def launch_us(self, op: Any, schedule: Any, plan: Any, gpu: Gpu) -> float:
        """Time from the beginning of its launch in a graph to its last store, with a cold cache, minus the time that it
        saves in the next launch; microseconds."""

    def timeline(self, op: Any, schedule: Any, plan: Any, gpu: Gpu) -> LaunchTimeline:
        """The tasks of that launch."""


def costs_of(op: Op) -> Costs:
    """Costs of an op's kind.

    Raises:
        IllegalSchedule: the kind has no costs.
    """
    costs = part_of(op.KIND, "costs")
    if costs is None:
        raise IllegalSchedule(f"{op.describe()}: this program has no cost model for this kind of op")
    return cast(Costs, costs)
