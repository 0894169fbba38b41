"""Gives a plan's tasks to CTAs on request: from their queues, by ticket, or after a first wave."""

from __future__ import annotations

from tuner.core.plan.table.header import FIRST_WAVE, STATIC
from tuner.core.plan.table.words import Plan


class TaskSource:
    """The remaining tasks of a plan in one launch."""

    def __init__(self, plan: Plan) -> None:
        bounds: list[int]
        if plan.assignment == STATIC:
            bounds = plan.queues.tolist()
        elif plan.assignment == FIRST_WAVE:
            bounds = [*range(plan.num_ctas + 1), plan.num_tasks]
        else:
            bounds = [0, plan.num_tasks]
        self._heads, self._ends = bounds[:-1], bounds[1:]
        #: [num_ctas] the lists that each CTA takes from; it turns to the second once the first is exhausted.
        self._lists: list[tuple[int, ...]] = [(cta,) for cta in range(plan.num_ctas)]
        if plan.assignment == FIRST_WAVE:
            self._lists = [(cta, plan.num_ctas) for cta in range(plan.num_ctas)]
        elif plan.assignment != STATIC:
            self._lists = [(0,)] * plan.num_ctas

    def take(self, cta: int) -> int:
        """The CTA's next task, or -1 if none is left for it."""
        for which in self._lists[cta]:
            task = self._heads[which]
            if task < self._ends[which]:
                self._heads[which] = task + 1
                return task
        return -1
