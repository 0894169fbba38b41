"""The device code of a launch op, by its kind."""

from __future__ import annotations

from typing import Any, Protocol

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import LaunchOp
from tuner.core.schedule.levels import LaunchOpSchedule
from tuner.errors import IllegalSchedule


class OwnSource(Protocol):
    """The module ``source`` of a kind of launch op."""

    def source_of(self, op: Any, schedule: Any, dtype: Dtype) -> str:
        """CUDA C++ of all its kernels. If they can record stamps, the function also takes ``traced_tasks``, the number
        of stamped tasks per CTA."""

    def version(self) -> str:
        """A digest of the code; results of a different version are a weaker match."""


def own_source(op: LaunchOp, schedule: LaunchOpSchedule, dtype: Dtype, traced_tasks: int = 0) -> str:
    """CUDA C++ of all its kernels, from `OwnSource`.

    Raises:
        IllegalSchedule: the kind has no source, or its kernels record no stamps.
    """
    source = part_of(op.KIND, "source")
    if source is None:
        raise IllegalSchedule(f"{op.describe()}: its kind has no file 'source', so there is nothing to compile")
    if traced_tasks:
        return str(source.source_of(op, schedule, dtype, traced_tasks=traced_tasks))
    return str(source.source_of(op, schedule, dtype))


def traced_tasks_of(op: LaunchOp, plan: object) -> int:
    """Number of stamped tasks per CTA of a traced build: a plan of a kind that records stamps has ``most_tasks``.

    Raises:
        IllegalSchedule: the kind's kernels record no stamps.
    """
    if part_of(op.KIND, "stamps") is None:
        raise IllegalSchedule(f"{op.describe()}: kernels of its kind record no stamps, so nothing can be traced")
    return int(plan.most_tasks)  # type: ignore[attr-defined]
