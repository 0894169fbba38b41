"""First guesses for a workload with an attention: the attention's schedules by forecast, each with a product's first
guess.

The forecast models bytes and ports, not registers or bank conflicts. So guesses differ in what it cannot judge: cluster
size, deep and shallow rings, and whether the product's weights are prefetched.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES
from tuner.core.schedule.candidate import in_fewest_launches
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AroundOp
from tuner.ops.attention.costs.timeline import attention_us
from tuner.ops.attention.op import Lengths
from tuner.ops.attention.plans import plan_of
from tuner.ops.attention.schedule import MOST_PORTABLE_CLUSTER, AttentionSchedule
from tuner.ops.attention.search.beside import may_ask, schedules_beside
from tuner.ops.attention.search.policies import policy_schedules
from tuner.search.guesses.sharing import has_launches_of_one

#: Number of schedules of each cluster size that are tried first.
_OF_CLUSTER = 2
#: Number of first guesses of the product that are tried with the best attention.
NUM_PRODUCTS = 4
#: Number of first guesses for products with their own launches: those with the shortest forecasts. Forecasts of chains
#: take too long.
_NUM_FORECAST = 8
#: Number of products whose CTA has to fit on an SM next to one of the attention.
_NUM_BESIDE = 2
#: An attention is wide if this share of the SMs has a CTA.
_WIDE_SHARE = 0.875
#: Maximum relative difference of forecasts that are treated as equal.
_EQUAL_SHARE = 0.02
#: Percentage of the next launch's weights that is prefetched, and whether before the previous launch has ended.
_ASKED = ((50, False), (100, False), (25, True), (50, True))
#: Preferred tokens per tile if forecasts are equal: the fastest pairs all had this size (docs/findings/README.md).
_TILE_TOKENS = 64


def attention_guesses(space: AroundOp, products: Iterator[Schedule]) -> Iterator[Schedule]:
    """The best attention of each cluster size, alternating with other products after the best one; the best with
    different prefetches of weights; published policies applied to the best with one CTA per task; then pairs that share
    SMs, which helps only if launches overlap. There are no duplicates. `products` are the first guesses of the product
    after it, if there is one: the first with each attention, the others with the best.
    """
    times_us = _forecasts_us(space)
    ranked = _ranked(times_us)
    best = ranked[0]
    behind = _products(space, products)
    first, others = (next(behind, None), behind) if space.tiles else (None, iter(()))
    given: dict[Schedule, None] = {}

    def fresh(schedules: Iterable[Schedule]) -> Iterator[Schedule]:
        for schedule in schedules:
            if schedule not in given:
                given[schedule] = None
                if space.is_legal(schedule):
                    yield schedule

    leading = list(dict.fromkeys(next(one for one in ranked if one.cluster == size) for size in _clusters(ranked)))
    of_clusters = (space.joined(one, first) for one in (*leading, *ranked))
    if first is None:
        yield from fresh(of_clusters)
        yield from fresh(_policies(space, ranked, None))
        return
    asking = list(dict.fromkeys((best, _widest(space, times_us) or leading[min(1, len(leading) - 1)])))
    if has_launches_of_one(space.workload):
        few = list(islice(others, NUM_PRODUCTS - 1))
        mixed = zip_longest(islice(of_clusters, len(leading)), (space.joined(best, one) for one in few))
        yield from fresh(one for pair in mixed for one in pair if one is not None)
        sharing = _beside_each_other(space, asking, (first, *few))
    else:
        sharing = schedules_beside(space, best, first)
    asks = (replace(one, next_percent=percent, next_early=early) for percent, early in _ASKED for one in asking)
    yield from fresh(space.joined(one, first) for one in asks if may_ask(space, one))
    yield from fresh(of_clusters)
    yield from fresh(_policies(space, ranked, first))
    yield from fresh(sharing)
    for product in islice(others, NUM_PRODUCTS):
        shallow = _beside(space, best, product)
        yield from fresh(space.joined(one, product) for one in (best, shallow) if one)


def _products(space: AroundOp, products: Iterator[Schedule]) -> Iterator[Schedule]:
    """First guesses of the products; for products with their own launches, the shortest forecasts first."""
    if space.tiles is None or not has_launches_of_one(space.workload):
        return products
    workload, few = space.tiles.workload, list(islice(products, _NUM_FORECAST))
    few.sort(key=lambda one: forecast_us(workload, space.gpu, in_fewest_launches(workload, one)))
    return chain(few, products)


def _clusters(ranked: Sequence[AttentionSchedule]) -> Iterable[int]:
    return dict.fromkeys(one.cluster for one in ranked)


def _widest(space: AroundOp, times_us: Mapping[AttentionSchedule, float]) -> AttentionSchedule | None:
    """The best attention with even spans and a CTA on nearly every SM, so that all CTAs prefetch weights; among equals,
    the one with the fewest spans. None if there is none."""
    most, least = space.op.shape.max_length, _WIDE_SHARE * space.gpu.num_sms
    wide = [
        one
        for one in times_us
        if one.cluster <= MOST_PORTABLE_CLUSTER
        and most % one.span_tokens == 0
        and plan_of(space.op, one, space.gpu).num_ctas >= least
    ]
    shortest_us = min(map(times_us.__getitem__, wide), default=0.0)
    equal = (one for one in wide if times_us[one] <= (1 + _EQUAL_SHARE) * shortest_us)
    return min(equal, key=lambda one: (-one.span_tokens, times_us[one]), default=None)


def _policies(space: AroundOp, ranked: Sequence[AttentionSchedule], product: Schedule | None) -> Iterator[Schedule]:
    """Published policies applied to the best attention with one CTA per task."""
    alone = next((one for one in ranked if one.cluster == 1), ranked[0])
    for _, published in policy_schedules(space.workload, space.gpu, space.op, alone):
        yield space.joined(published, product)


def _beside_each_other(
    space: AroundOp, attentions: Sequence[AttentionSchedule], products: Sequence[Schedule]
) -> Iterator[Schedule]:
    """The pairs of these attentions and products that share SMs, alternating: the most promising of each pair first.
    One product is enough for each way to cut the weights into tiles."""
    of_tiles: dict[tuple[tuple[int, int], ...], Schedule] = {}
    for product in products:
        if next(schedules_beside(space, attentions[0], product), None):
            of_tiles.setdefault(tuple((tile.n, tile.k) for tile in product.tiling.tiles), product)
    fit = list(of_tiles.values())[:_NUM_BESIDE]
    pairs = [(attention, product) for attention in attentions for product in fit]
    for in_turn in zip_longest(*(schedules_beside(space, attention, product) for attention, product in pairs)):
        yield from (schedule for schedule in in_turn if schedule)


def attention_beside(space: AroundOp, product: Schedule | None) -> AttentionSchedule | None:
    """The attention's first guess before a product: if possible, one whose CTAs fit on an SM with the product's."""
    best = next(iter(_ranked(_forecasts_us(space))), None)
    return best and (best if product is None else _beside(space, best, product) or best)


def _forecasts_us(space: AroundOp) -> dict[AttentionSchedule, float]:
    """A forecast in microseconds for each offered cluster, span and kernel: for the schedule with the deeper ring, and
    among these for one with warps that finish tasks. Shorter ones come first; among equal ones, those that leave no CTA
    of a cluster without tokens.
    """
    early, is_ragged = space.op.form.knows_tokens_early, space.op.lengths is not Lengths.FULL
    plain = [
        one
        for one in space.offered
        if one.speculative == (early and not one.by_length)
        and (is_ragged or not one.by_length)
        and not one.next_percent
        and not one.contiguous
    ]
    random.Random(0).shuffle(plain)
    by_plan: dict[tuple[int, ...], AttentionSchedule] = {}
    for one in sorted(plain, key=lambda one: (-one.num_stages * one.tile_tokens, not one.finish_warps)):
        by_plan.setdefault((one.cluster, one.span_tokens, one.tile_tokens, one.math_warps, one.by_length), one)
    times_us, most = {one: _forecast_us(space, one) for one in by_plan.values()}, space.op.shape.max_length

    def place(one: AttentionSchedule) -> tuple[float, int, int]:
        return round(times_us[one], 2), max(0, one.span_tokens - most), abs(one.tile_tokens - _TILE_TOKENS)

    return {one: times_us[one] for one in sorted(times_us, key=place)}


def _ranked(times_us: Mapping[AttentionSchedule, float]) -> list[AttentionSchedule]:
    """For each cluster size, the schedules with the shortest forecasts, each with a different kernel; the shortest of
    all first. If lengths differ, both ways to assign tasks are included: by the launch and by the plan."""
    ranked, found = list(times_us), list[AttentionSchedule]()
    orders = dict.fromkeys(one.by_length for one in ranked)
    for place in [(cluster, by_length) for cluster in _clusters(ranked) for by_length in orders]:
        alike = (one for one in ranked if (one.cluster, one.by_length) == place)
        found += islice(alike, _OF_CLUSTER // len(orders))
    return sorted(found, key=ranked.index)


def _forecast_us(space: AroundOp, one: AttentionSchedule) -> float:
    plan = plan_of(space.op, one, space.gpu)
    return attention_us(plan, space.op.timed_lengths, space.gpu, tiling=one.tiling_of(space.op.shape))


def _beside(space: AroundOp, one: AttentionSchedule, product: Schedule) -> AttentionSchedule | None:
    """The schedule with the deepest ring that leaves space on an SM for a CTA of the product, which fills its own
    ring meanwhile; None if there is none."""
    taken = dynamic_smem_bytes(space.workload, product.tiling) + 2 * SMEM_RESERVED_PER_CTA_BYTES
    left = space.gpu.smem_per_sm_bytes - taken
    same = [
        other
        for other in space.offered
        if _order(other) == _order(one)
        and not other.next_percent
        and other.tiling_of(space.op.shape).smem_bytes <= left
    ]
    return max(same, key=lambda other: other.num_stages * other.tile_tokens, default=None)


def _order(one: AttentionSchedule) -> tuple[int, int, bool, bool, bool]:
    """A key for how tasks are assigned to the clusters."""
    return one.cluster, one.span_tokens, one.contiguous, one.speculative, one.by_length
