"""What is known of the times of ops by their kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op import Op
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Workload
from tuner.errors import IllegalSchedule


class Costs(Protocol):
    """The file ``costs`` of a kind."""

    def launch_us(self, op: Any, schedule: Any, plan: Any, gpu: Gpu) -> float:
        """Of a launch op: from the begin of its launch in a graph to its last store, with a cold cache, less what it
        saves the launch behind it; microseconds."""

    def library_us(self, ops: Sequence[Any], workload: Workload, gpu: Gpu) -> float:
        """What a vendor's library takes for all ops of the kind in a workload, microseconds."""


def costs_of(op: Op) -> Costs:
    """Of an op's kind.

    Raises:
        IllegalSchedule: nothing is known of them.
    """
    costs = part_of(op.KIND, "costs")
    if costs is None:
        raise IllegalSchedule(f"{op.describe()}: nothing is known here of how long it takes")
    return cast(Costs, costs)
