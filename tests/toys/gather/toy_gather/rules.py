"""Which schedules of a gather are legal."""

from __future__ import annotations

from toy_gather.op import GatherOp
from toy_gather.schedule import GatherSchedule
from tuner.extend import Gpu, Resources, Workload, values_problem


def refuse(workload: Workload, gpu: Gpu, op: GatherOp, schedule: GatherSchedule) -> str | None:
    """Why a schedule cannot be compiled, or is equivalent to a shorter one."""
    if problem := values_problem(schedule):
        return problem
    if schedule.rows_per_cta > op.m:
        return f"{schedule.rows_per_cta} rows per CTA, but there are {op.m}: use fewer"
    return None


def resources_of(op: GatherOp, schedule: GatherSchedule) -> Resources:
    """The resources of a CTA: only the count is in shared memory."""
    return Resources(num_threads=schedule.threads, smem_bytes=4, registers_per_thread=40)
