"""First guesses where a workload has an attention: its schedules by forecast, each with a product's first guess.

The forecast knows bytes and ports, not registers or bank conflicts. So guesses differ in what it cannot judge: a
cluster of each size, deep rings and shallow ones, who asks for the product's weights first.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.model.attention import attention_us
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.attention_op import Lengths
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES
from tuner.core.proof.attention import attention_plan
from tuner.core.schedule.attention import AttentionSchedule
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import Schedule
from tuner.core.space.attention import AttentionSpace
from tuner.core.space.attention_policies import policy_schedules
from tuner.search.attention_beside import may_ask_early, schedules_beside

#: Schedules of a cluster's size that are tried first.
_OF_CLUSTER = 2
#: First guesses of the product that are put behind the best attention.
NUM_PRODUCTS = 4
#: A single product's first guesses, of which these are the shortest forecasts. Those of a chain take too long.
_NUM_FORECAST = 8
#: Attentions of other clusters, and products, of which a CTA each is to fit an SM.
_NUM_BESIDE = 2
#: Of the weights of the launch behind: per cent that are asked for, and whether before the launch before has ended.
_ASKED = ((50, False), (100, False), (25, True), (50, True))
#: Of equal forecasts, tokens of a tile: it was this in each pair that was fastest (docs/findings/attention-early.md).
_TILE_TOKENS = 64


def attention_guesses(space: AttentionSpace, products: Iterator[Schedule]) -> Iterator[Schedule]:
    """The best attention of each cluster's size, in turns with other products behind the best; the best with other
    asks for weights; what published policies make of the best of one CTA a task; then what shares SMs, which pays only
    where launches overlap. None twice. `products` are the first guesses of the product behind it, if there is one: the
    first with each attention, the others with the best."""
    ranked = _ranked(space)
    best = ranked[0]
    behind = _products(space, products)
    first, others = (next(behind, None), behind) if space.products else (None, iter(()))
    given: dict[Schedule, None] = {}

    def fresh(schedules: Iterable[Schedule]) -> Iterator[Schedule]:
        for schedule in schedules:
            if schedule not in given:
                given[schedule] = None
                if space.is_legal(schedule):
                    yield schedule

    leading = list(dict.fromkeys(next(one for one in ranked if one.cluster == size) for size in _clusters(ranked)))
    of_clusters = (space.with_product(one, first) for one in (*leading, *ranked))
    if first is None:
        yield from fresh(of_clusters)
        yield from fresh(_policies(space, ranked, None))
        return
    if len(space.workload.ops) == 1:
        few = list(islice(others, NUM_PRODUCTS - 1))
        mixed = zip_longest(islice(of_clusters, len(leading)), (space.with_product(best, one) for one in few))
        yield from fresh(one for pair in mixed for one in pair if one is not None)
        sharing = _beside_each_other(space, leading, (first, *few))
    else:
        sharing = schedules_beside(space, best, first)
    asks = (replace(best, next_percent=percent, next_early=early) for percent, early in _ASKED)
    yield from fresh(space.with_product(one, first) for one in asks if not one.next_early or may_ask_early(space, one))
    yield from fresh(of_clusters)
    yield from fresh(_policies(space, ranked, first))
    yield from fresh(sharing)
    for product in islice(others, NUM_PRODUCTS):
        shallow = _beside(space, best, product)
        yield from fresh(space.with_product(one, product) for one in (best, shallow) if one)


def _products(space: AttentionSpace, products: Iterator[Schedule]) -> Iterator[Schedule]:
    """First guesses of what stands behind; of a single product the shortest forecasts first."""
    if space.products is None or len(space.workload.ops) > 1:
        return products
    workload, few = space.products.workload, list(islice(products, _NUM_FORECAST))
    few.sort(key=lambda one: forecast_us(workload, space.gpu, fused(one)))
    return chain(few, products)


def _clusters(ranked: Sequence[AttentionSchedule]) -> Iterable[int]:
    return dict.fromkeys(one.cluster for one in ranked)


def _policies(
    space: AttentionSpace, ranked: Sequence[AttentionSchedule], product: Schedule | None
) -> Iterator[Schedule]:
    """What published policies make of the best attention of one CTA a task."""
    alone = next((one for one in ranked if one.cluster == 1), ranked[0])
    for _, published in policy_schedules(space.workload, space.gpu, space.op, alone):
        yield space.with_product(published, product)


def _beside_each_other(
    space: AttentionSpace, attentions: Sequence[AttentionSchedule], products: Sequence[Schedule]
) -> Iterator[Schedule]:
    """Of the best attentions and products those that share SMs: the best with the best, then others of either."""
    fit = [one for one in products if next(schedules_beside(space, attentions[0], one), None)][:_NUM_BESIDE]
    pairs = [(one, product) for product in fit[:1] for one in attentions[:_NUM_BESIDE]]
    for attention, product in [*pairs, *((attentions[0], product) for product in fit[1:])]:
        yield from schedules_beside(space, attention, product)


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
    ranked = sorted(times_us, key=lambda one: (round(times_us[one], 2), abs(one.tile_tokens - _TILE_TOKENS)))
    found: list[AttentionSchedule] = []
    for cluster in dict.fromkeys(one.cluster for one in ranked):
        found += [one for one in ranked if one.cluster == cluster][:_OF_CLUSTER]
    return sorted(found, key=ranked.index)


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
