"""The space of a workload with an attention: the attention's schedules, and those of the products around it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import islice

from tuner.core.legal.legality import gpu_problem, is_legal
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.attention import AttentionSchedule
from tuner.core.schedule.levels import NO_ORDERING, NO_TILING
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.attention_schedules import near_attentions, offered_attentions
from tuner.core.space.space import Space
from tuner.errors import IllegalSchedule

#: Of the attention's neighbours and of the product's, so many in turn.
_IN_TURN = 4


class AttentionSpace:
    """Every legal schedule of the offered values.

    Raises:
        IllegalSchedule: the GPU runs none.
    """

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        if problem := gpu_problem(gpu):
            raise IllegalSchedule(problem)
        self.workload = workload
        self.gpu = gpu
        self.op = workload.launch_ops[0]
        #: Of the products alone; None where there are none.
        self.products = Space(workload.products, gpu) if workload.tile_ops else None

    @cached_property
    def attentions(self) -> tuple[AttentionSchedule, ...]:
        """All that are offered."""
        return tuple(offered_attentions(self.workload, self.gpu, self.op))

    @cached_property
    def num_schedules(self) -> int:
        """Legal schedules of the offered values."""
        return len(self.attentions) * (self.products.num_schedules if self.products else 1)

    def with_product(self, attention: AttentionSchedule, product: Schedule | None) -> Schedule:
        """Both as one schedule."""
        if product is None:
            return Schedule.of(tiling=NO_TILING, ordering=NO_ORDERING, launch_ops=(attention,))
        return product.but(launch_ops=(attention,))

    def __iter__(self) -> Iterator[Schedule]:
        for attention in self.attentions:
            for one in self.products or (None,):
                yield self.with_product(attention, one)

    def sample(self, rng: random.Random, count: int) -> list[Schedule]:
        """Different legal schedules, at most `count`: each with another attention, as long as there are others."""
        attentions = list(self.attentions)
        if self.products is None:
            return [self.with_product(one, None) for one in rng.sample(attentions, min(count, len(attentions)))]
        products = self.products.sample(rng, count)
        drawn = [self.with_product(rng.choice(attentions), one) for one in products]
        return list(dict.fromkeys(drawn))

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """The legal schedules that differ in one axis of the attention, or in one of the product; both in turns."""
        attention = schedule.launch_ops[0]
        near = [schedule.but(launch_ops=(one,)) for one in near_attentions(self.workload, self.gpu, self.op, attention)]
        if self.products is None:
            return near
        others = iter(
            self.with_product(attention, one) for one in self.products.neighbours(schedule.but(launch_ops=()))
        )
        mixed: list[Schedule] = []
        for begin in range(0, len(near), _IN_TURN):
            mixed += [*near[begin : begin + _IN_TURN], *islice(others, _IN_TURN)]
        return [*mixed, *others]

    def is_legal(self, schedule: Schedule) -> bool:
        """Whether the schedule is legal, offered or not."""
        return is_legal(self.workload, self.gpu, schedule)


#: What a search may choose from.
AnySpace = Space | AttentionSpace


@lru_cache(maxsize=2)  # as `Space`'s
def any_space_of(workload: Workload, gpu: Gpu) -> AnySpace:
    """The space of any workload, shared by all who ask for it.

    Raises:
        IllegalSchedule: the GPU runs none.
    """
    return AttentionSpace(workload, gpu) if workload.launch_ops else Space(workload, gpu)
