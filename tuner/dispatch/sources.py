"""The source of a candidate's kernel, as rendered by the workers."""

from __future__ import annotations

from tuner.core.problem.joined import joined_workload
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Op, Workload
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.reports.same_kernels import version_of_all
from tuner.errors import InvalidInput


def source_of(workload: Workload, schedule: Schedule) -> str:
    """The kernel's CUDA C++, which is the same for every GPU and every ordering; several kernels are concatenated.

    Raises:
        IllegalSchedule: no warp grid fits a tile.
    """
    from tuner.workers.source.render import render

    pairs = zip(workload.launch_ops, schedule.launch_ops, strict=True)
    sources = [part.source_of(op, one, workload.dtype) for op, one in pairs if (part := part_of(op.KIND, "source"))]
    return "\n".join([*sources, *([render(workload, schedule.tiling)] if schedule.tiling.tiles else [])])


def kernel_version_for(environment: Environment, workload: Workload) -> str:
    """The digest of the kernel sources on which a workload's figures depend. Each kind has its own sources, and rows
    from packages are included for workloads that use them."""
    from tuner.workers.source.render import pages_version
    from tuner.workers.source.rows import added_text

    kinds = dict.fromkeys(op.KIND for op in (*workload.ops, *_joined(workload)))
    own = [part.version() for kind in kinds if (part := part_of(kind, "source"))]
    own += (
        [pages_version()] if any(op.written_cache and op.written_cache.paged(op.m) for op in workload.tile_ops) else []
    )
    return version_of_all(environment.kernel_version, [*own, *added_text(workload)])


def _joined(workload: Workload) -> tuple[Op, ...]:
    """The op that computes all of the workload's ops; empty if there is none."""
    try:
        return joined_workload(workload).ops
    except InvalidInput:
        return ()


def without_artifact(workload: Workload) -> list[str]:
    """The launch ops whose kind does not describe its launches."""
    return [op.name for op in workload.launch_ops if part_of(op.KIND, "launches") is None]
