"""First guesses where a workload has an attention: its schedules by forecast, each with a product's first guess.

The forecast knows bytes and ports, not registers or bank conflicts. So guesses differ in what it cannot judge: a
cluster of each size, deep rings and shallow ones, who asks for the product's weights first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.model.attention import attention_us
from tuner.core.problem.attention_op import Lengths
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES
from tuner.core.proof.attention import attention_plan
from tuner.core.schedule.attention import AttentionSchedule
from tuner.core.schedule.ordering import Schedule
from tuner.core.space.attention import AttentionSpace
from tuner.core.space.attention_policies import policy_schedules
from tuner.search.attention_beside import may_ask_early, schedules_beside

#: Schedules of a cluster's size that are tried first.
_OF_CLUSTER = 2
#: First guesses of the product that are put behind the best attention.
NUM_PRODUCTS = 4
#: Of the weights of the launch behind: per cent that are asked for, and whether before the launch before has ended.
_ASKED = ((50, False), (100, False), (25, True), (50, True))


def attention_guesses(space: AttentionSpace, products: Iterator[Schedule]) -> Iterator[Schedule]:
    """The best attention of each cluster's size, what published policies make of the best of one CTA a task, then what
    differs from the best of all, none twice. `products` are the
    first guesses of the product behind it, if there is one: the first with each attention, the others with the best."""
    ranked = _ranked(space)
    first: Sequence[Schedule | None] = list(islice(products, 1)) or [None]
    given: dict[Schedule, None] = {}
    for attention in ranked:
        given.setdefault(space.with_product(attention, first[0]))
    best = ranked[0]
    alone = next((one for one in ranked if one.cluster == 1), best)
    for _, published in policy_schedules(space.workload, space.gpu, space.op, alone):
        given.setdefault(space.with_product(published, first[0]))
    for percent, early in _ASKED if space.products else ():
        if early and not may_ask_early(space, best):
            continue
        given.setdefault(space.with_product(replace(best, next_percent=percent, next_early=early), first[0]))
    for schedule in given:
        if space.is_legal(schedule):
            yield schedule
    if first[0] is not None:
        yield from (one for one in schedules_beside(space, best, first[0]) if one not in given)
    for one in islice(products, NUM_PRODUCTS):
        beside = _beside(space, best, one)
        for attention in (best, *([beside] if beside else [])):
            behind = space.with_product(attention, one)
            if behind not in given and space.is_legal(behind):
                yield behind
            given[behind] = None


def attention_beside(space: AttentionSpace, product: Schedule) -> AttentionSchedule | None:
    """The attention's first guess in front of a product: where there is one, such that CTAs of both fit an SM."""
    best = next(iter(_ranked(space)), None)
    return best and (_beside(space, best, product) or best)


def _ranked(space: AttentionSpace) -> list[AttentionSchedule]:
    """Of each size of a cluster the shortest forecasts, each of another kernel; the shortest of all first. Of equal
    forecasts the deeper ring."""
    early, is_ragged = space.op.form.knows_tokens_early, space.op.lengths is not Lengths.FULL
    plain = [
        one
        for one in space.attentions
        if one.speculative == (early and not one.by_length)
        and (is_ragged or not one.by_length)
        and not one.next_percent
        and not one.contiguous
    ]
    random.Random(0).shuffle(plain)
    by_plan: dict[tuple[int, ...], AttentionSchedule] = {}
    for one in sorted(plain, key=lambda one: -one.num_stages * one.tile_tokens):
        by_plan.setdefault((one.cluster, one.span_tokens, one.tile_tokens, one.math_warps, one.by_length), one)
    times_us = {one: _forecast_us(space, one) for one in by_plan.values()}
    ranked = sorted(times_us, key=lambda one: times_us[one])
    found: list[AttentionSchedule] = []
    for cluster in dict.fromkeys(one.cluster for one in ranked):
        found += [one for one in ranked if one.cluster == cluster][:_OF_CLUSTER]
    return sorted(found, key=lambda one: times_us[one])


def _forecast_us(space: AttentionSpace, one: AttentionSchedule) -> float:
    plan = attention_plan(space.op, one, space.gpu)
    return attention_us(plan, space.op.timed_lengths, space.gpu, tiling=one.tiling_of(space.op.shape))


def _beside(space: AttentionSpace, one: AttentionSchedule, product: Schedule) -> AttentionSchedule | None:
    """The schedule with the deepest ring that leaves an SM room for a CTA of the product, which then fills its own
    ring meanwhile; None where none does."""
    taken = dynamic_smem_bytes(space.workload, product.tiling) + 2 * SMEM_RESERVED_PER_CTA_BYTES
    left = space.gpu.smem_per_sm_bytes - taken
    same = [
        other
        for other in space.attentions
        if _order(other) == _order(one)
        and not other.next_percent
        and other.tiling_of(space.op.shape).smem_bytes <= left
    ]
    return max(same, key=lambda other: other.num_stages * other.tile_tokens, default=None)


def _order(one: AttentionSchedule) -> tuple[int, int, bool, bool, bool]:
    """How tasks reach the clusters."""
    return one.cluster, one.span_tokens, one.contiguous, one.speculative, one.by_length
