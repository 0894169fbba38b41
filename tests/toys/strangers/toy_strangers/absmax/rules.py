"""Which schedules are legal."""

from __future__ import annotations

from toy_strangers.absmax.op import AbsmaxOp
from toy_strangers.absmax.schedule import AbsmaxSchedule
from tuner.extend import Gpu, Resources, Workload, values_problem


def refuse(workload: Workload, gpu: Gpu, op: AbsmaxOp, schedule: AbsmaxSchedule) -> str | None:
    """Why a schedule is illegal."""
    return values_problem(schedule)


def resources_of(op: AbsmaxOp, schedule: AbsmaxSchedule) -> Resources:
    """The resources of a CTA."""
    return Resources(num_threads=schedule.threads, smem_bytes=128, registers_per_thread=40)
