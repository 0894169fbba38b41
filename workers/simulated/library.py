"""A model of the vendor library's run time, for comparison on the simulated GPU."""

from __future__ import annotations

from tuner.core.model.bounds import reference_us
from tuner.core.model.launch_ops import costs_of
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload


def library_us(workload: Workload, gpu: Gpu) -> float:
    """A vendor library's time for all ops, by each kind's module ``costs``.

    Raises:
        IllegalSchedule: an op's kind has no costs.
    """
    kinds = dict.fromkeys(op.KIND for op in workload.ops)
    by_kind = [[op for op in workload.ops if kind == op.KIND] for kind in kinds]
    return max(sum(costs_of(ops[0]).library_us(ops, workload, gpu) for ops in by_kind), reference_us(workload, gpu))
