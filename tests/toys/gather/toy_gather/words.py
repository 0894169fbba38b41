"""A schedule of a gather in words."""

from __future__ import annotations

from toy_gather.op import GatherOp
from toy_gather.schedule import GatherSchedule
from tuner.core.problem.workload import Workload


def schedule_words(op: GatherOp, schedule: GatherSchedule, workload: Workload) -> list[str]:
    """A sentence."""
    return [f"Gather {op.name}: CTAs of {schedule.threads} threads, {schedule.rows_per_cta} rows each."]
