"""Texts about a schedule of a gather."""

from __future__ import annotations

from collections.abc import Iterator

from toy_gather.op import GatherOp
from toy_gather.plans import GatherPlan
from toy_gather.schedule import GatherSchedule
from tuner.extend import Gpu, LibraryRecipe, Workload


def schedule_words(op: GatherOp, schedule: GatherSchedule, workload: Workload) -> list[str]:
    """The schedule as a sentence."""
    return [f"Gather {op.name}: CTAs of {schedule.threads} threads, {schedule.rows_per_cta} rows each."]


def explain(op: GatherOp, schedule: GatherSchedule, plan: GatherPlan, workload: Workload, gpu: Gpu) -> Iterator[str]:
    """How its CTAs fill the GPU."""
    yield f"Tasks: {op.name} has {op.m} rows in {plan.num_ctas} CTAs on {gpu.num_sms} SMs."


def library_of(recipe: LibraryRecipe | None) -> str:
    """The library that it is compared with."""
    return "index_select and an addition"
