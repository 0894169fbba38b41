"""An attention and the product after it whose CTAs fit on an SM together.

The product's CTAs then fill their rings while the attention runs, and the next attention waits next to the product. So
it has time to prefetch the weights of its own product into the L2, while nothing else reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AroundOp
from tuner.ops.attention.plans import plan_of
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.search.guesses.rings import fitted, windowed

#: The fastest values for such a pair: tokens of a shallow ring, warps that multiply, and warps that finish tasks.
_RING_TOKENS, _MATH_WARPS, _FINISH_WARPS = 128, 4, 4
#: Maximum bytes of weights in flight per CTA of the product, so that keys and values do not wait behind a whole ring of
#: weights (docs/findings/README.md).
_WINDOW_BYTES = 49_152
#: Percentage of the weights that is prefetched, and whether early; the fastest first (docs/findings/README.md).
_ASKS = ((25, True), (0, False), (50, True))
#: At least one in `_ASKING_SHARE` SMs has a CTA that requests weights.
_ASKING_SHARE = 3


def schedules_beside(space: AroundOp, attention: AttentionSchedule, product: Schedule) -> Iterator[Schedule]:
    """Legal schedules that share tasks like `attention` and tile like `product`, with shallower rings, and fewer
    weights in flight than the product's ring holds."""
    assert space.tiles is not None
    shallow = _shallow(space, attention)
    taken = shallow.tiling_of(space.op.shape).smem_bytes + 2 * SMEM_RESERVED_PER_CTA_BYTES
    tiling = fitted(space.tiles.workload, space.gpu, product.tiling, space.gpu.smem_per_sm_bytes - taken)
    if tiling is None:
        return
    tiling = windowed(space.tiles.workload, space.gpu, tiling, _WINDOW_BYTES)
    for percent, early in _ASKS:
        asking = replace(shallow, next_percent=percent, next_early=early)
        if percent and not may_ask(space, asking):
            continue
        schedule = space.joined(asking, product.but(tiling=tiling))
        if space.is_legal(schedule):
            yield schedule


def may_ask(space: AroundOp, attention: AttentionSchedule) -> bool:
    """Whether the weight requests are spread over enough CTAs that none of them delays its keys for long."""
    plan = plan_of(space.op, attention, space.gpu)
    return _ASKING_SHARE * plan.num_ctas >= space.gpu.num_sms


def _shallow(space: AroundOp, attention: AttentionSchedule) -> AttentionSchedule:
    """The schedule with few warps and a ring of few tokens, in whole stages of each team."""
    slices = attention.tile_tokens // 16
    warps = max(_MATH_WARPS, slices)
    teams = warps // slices
    tokens = min(_RING_TOKENS, attention.span_tokens // attention.cluster, space.op.shape.max_length)
    stages = max(1, tokens // attention.tile_tokens // teams) * teams
    return replace(attention, math_warps=warps, finish_warps=_FINISH_WARPS, num_stages=stages)
