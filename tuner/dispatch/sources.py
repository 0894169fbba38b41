"""The source of a candidate's kernel, as the workers render it."""

from __future__ import annotations

import hashlib

from tuner.core.problem.workload import Workload
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Environment


def source_of(workload: Workload, schedule: Schedule) -> str:
    """CUDA C++, the same for every GPU and every ordering; of several kernels one behind the other.

    Raises:
        IllegalSchedule: no warp grid fits a tile.
    """
    from tuner.workers.source.attention import attention_source
    from tuner.workers.source.render import render

    pairs = zip(workload.launch_ops, schedule.launch_ops, strict=True)
    sources = [attention_source(op, one) for op, one in pairs]
    return "\n".join([*sources, *([render(workload, schedule.tiling)] if schedule.tiling.tiles else [])])


def kernel_version_for(environment: Environment, workload: Workload) -> str:
    """The digest of the kernel sources that a workload's figures rest on: an attention has sources of its own."""
    if not workload.launch_ops:
        return environment.kernel_version
    from tuner.workers.source.attention import attention_version

    both = f"{environment.kernel_version} {attention_version()}"
    return hashlib.sha256(both.encode()).hexdigest()[: len(environment.kernel_version)]
