"""A schedule in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.extend import Gpu, LibraryRecipe, Workload


def schedule_words(op: Any, schedule: Any, workload: Workload) -> list[str]:
    """The schedule as a sentence."""
    return [f"Absmax {op.name}: {schedule}."]


def explain(op: Any, schedule: Any, plan: Any, workload: Workload, gpu: Gpu) -> Iterator[str]:
    """How its CTAs fill the GPU."""
    yield f"Tasks: {op.name} has {plan.num_ctas} CTAs on {gpu.num_sms} SMs."


def library_of(recipe: LibraryRecipe | None) -> str:
    """The library that it is compared with."""
    return "two elementwise kernels"
