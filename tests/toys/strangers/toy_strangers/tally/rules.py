"""Which schedules are legal."""

from __future__ import annotations

from toy_strangers.tally.op import TallyOp
from toy_strangers.tally.schedule import TallySchedule
from tuner.extend import Gpu, Resources, Workload, values_problem


def refuse(workload: Workload, gpu: Gpu, op: TallyOp, schedule: TallySchedule) -> str | None:
    """Why a schedule is illegal."""
    return values_problem(schedule)


def resources_of(op: TallyOp, schedule: TallySchedule) -> Resources:
    """The resources of a CTA."""
    return Resources(num_threads=schedule.threads, smem_bytes=128, registers_per_thread=40)
