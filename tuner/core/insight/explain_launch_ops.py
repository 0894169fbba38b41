"""For launch ops: what limits them, each kind's description of its launch, and the total time of all launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast

from tuner.core.model.bounds import dram_us, tensor_us
from tuner.core.model.forecast import PROGRAMMATIC_GAIN_US
from tuner.core.model.launch_ops import costs_of
from tuner.core.model.simulate import simulate
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import LaunchOp
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.schedule.candidate import Candidate, apart_kind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.reports.library_recipe import LibraryRecipe


class Words(Protocol):
    """The file ``words`` that a kind of launch op provides."""

    def schedule_words(self, op: Any, schedule: Any, workload: Workload) -> list[str]:
        """What a schedule of the op does, in sentences that need no glossary."""

    def explain(self, op: Any, schedule: Any, plan: Any, workload: Workload, gpu: Gpu) -> Iterator[str]:
        """Why its launch is fast or slow: how its tasks fill the GPU, and what is in flight."""

    def library_of(self, recipe: LibraryRecipe | None) -> str:
        """The library that it was timed against, e.g. ``cuBLASLt``; taken from the recipe if there is one."""

    def order_of_sums(self, op: Any, schedule: Any) -> str:
        """What determines a row's bits; empty if the kind does not say."""


def words_of(op: LaunchOp) -> Words | None:
    """The `Words` of an op's kind; None if it has none."""
    return cast("Words | None", part_of(op.KIND, "words"))


def explain_launch_ops(workload: Workload, gpu: Gpu, schedule: Schedule) -> Iterator[str]:
    """Sentences about a schedule's launches: those of its launch ops, and one launch for each tile op around them.

    Raises:
        IllegalSchedule: the schedule is not legal.
    """
    candidate = Candidate(plan_kind=apart_kind(len(workload.ops)), schedule=schedule)
    memory_us, product_us = dram_us(workload, gpu), tensor_us(workload, gpu)
    of_caches = f", of which the caches are {1e6 * workload.cache_bytes / gpu.dram_bytes_per_s:.1f}"
    yield (
        f"Bounds: DRAM {memory_us:.1f} us{of_caches if workload.cache_bytes else ''}; tensor cores {product_us:.1f} us."
    )
    times_us: dict[str, float] = {}
    plans = own_plans_for(workload, gpu, candidate)
    for op, one, plan in zip(workload.launch_ops, schedule.launch_ops, plans, strict=True):
        if (words := words_of(op)) is not None:
            yield from words.explain(op, one, plan, workload, gpu)
        times_us[op.name] = costs_of(op).launch_us(op, one, plan, gpu)
    for product in plans_for(workload, gpu, candidate):
        (index,) = product.graph.op_indices
        times_us[workload.tile_ops[index].name] = simulate(product).makespan_us
    parts = ", ".join(f"{op.name} {times_us[op.name]:.1f} us" for op in workload.ops)
    yield (
        f"Forecast: {parts}; {sum(times_us.values()):.1f} us with plain launches, and {PROGRAMMATIC_GAIN_US:.1f} us "
        "less for each launch that is programmatic."
    )
