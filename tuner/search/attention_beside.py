"""An attention and the product behind it whose CTAs fit an SM together.

The product's CTAs then fill their rings while the attention runs, and the next attention waits beside the product. So
it has the time to ask the L2 for the weights of its own product, while nobody else reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tuner.core.legal.legality import dynamic_smem_bytes, tiling_problem
from tuner.core.legal.wgmma import stage_bytes
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES, Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.attention import attention_plan
from tuner.core.schedule.attention import AttentionSchedule
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.core.space.attention import AnySpace, AttentionSpace

#: Tokens of a shallow ring, and its kernel's warps that multiply and that end tasks, by which it was fastest beside.
_RING_TOKENS, _MATH_WARPS, _FINISH_WARPS = 128, 4, 4
#: Bytes of weights that a CTA of the product has under way at most, so that keys and values do not stand behind a whole
#: ring of them (docs/findings/ahead-window.md).
_WINDOW_BYTES = 49_152
#: Per cent of the weights that are asked for, and whether early, the fastest first (docs/findings/attention-early.md).
_ASKS = ((25, True), (0, False), (50, True))
#: Of the SMs, one in so many has a CTA that asks at least.
_ASKING_SHARE = 3


def schedules_beside(space: AttentionSpace, attention: AttentionSchedule, product: Schedule) -> Iterator[Schedule]:
    """Legal schedules that share tasks as `attention` does and tile as `product` does, with shallower rings, and fewer
    weights under way than the product's ring holds."""
    assert space.products is not None
    shallow = _shallow(space, attention)
    taken = shallow.tiling_of(space.op.shape).smem_bytes + 2 * SMEM_RESERVED_PER_CTA_BYTES
    tiling = fitted(space.products.workload, space.gpu, product.tiling, space.gpu.smem_per_sm_bytes - taken)
    if tiling is None:
        return
    tiling = _windowed(space, tiling)
    for percent, early in _ASKS:
        asking = replace(shallow, next_percent=percent, next_early=early)
        if percent and not may_ask(space, asking):
            continue
        schedule = space.with_product(asking, product.but(tiling=tiling))
        if space.is_legal(schedule):
            yield schedule


def may_ask(space: AttentionSpace, attention: AttentionSchedule) -> bool:
    """Whether so many CTAs ask for weights that what each asks for does not stand in front of its keys for long."""
    plan = attention_plan(space.op, attention, space.gpu)
    return _ASKING_SHARE * plan.num_ctas >= space.gpu.num_sms


def has_launches_of_one(workload: Workload) -> bool:
    """Whether there is a product, and no launch computes two."""
    return max(map(len, workload.sides), default=0) == 1


def sharing_sms(space: AnySpace, guesses: Iterable[Schedule]) -> list[Schedule]:
    """Of an attention and products with a launch each those whose CTAs fit an SM together; of all else none."""
    if not isinstance(space, AttentionSpace) or not has_launches_of_one(space.workload):
        return []
    return [schedule for schedule in guesses if shares_an_sm(space, schedule)]


def shares_an_sm(space: AttentionSpace, schedule: Schedule) -> bool:
    """Whether a CTA of each of both launches fits an SM."""
    if space.products is None:
        return False
    (attention,) = schedule.launch_ops
    product = dynamic_smem_bytes(space.products.workload, schedule.tiling)
    taken = attention.tiling_of(space.op.shape).smem_bytes + product + 2 * SMEM_RESERVED_PER_CTA_BYTES
    return taken <= space.gpu.smem_per_sm_bytes


def fitted(workload: Workload, gpu: Gpu, tiling: Tiling, most_smem_bytes: int) -> Tiling | None:
    """A product's tiling with rings that take no more shared memory, of which the inputs' give way first; None where
    none are legal."""
    for input_stages in range(tiling.input_stages, 1, -1):
        for num_stages in range(tiling.num_stages, 3, -1):
            shorter = replace(tiling, input_stages=input_stages, num_stages=num_stages)
            if dynamic_smem_bytes(workload, shorter) > most_smem_bytes:
                continue
            if input_stages > 2 and num_stages < tiling.num_stages * 2 // 3:
                break  # fewer inputs first
            return shorter if tiling_problem(workload, gpu, shorter) is None else None
    return None


def _windowed(space: AttentionSpace, tiling: Tiling) -> Tiling:
    """With a window of about so many bytes, where that is shorter than the ring and legal."""
    assert space.products is not None
    window = max(1, round(_WINDOW_BYTES / stage_bytes(space.products.workload, tiling)[1]))
    if tiling.engine is not Engine.WGMMA or window >= tiling.num_stages:
        return tiling
    windowed = replace(tiling, window=window)
    return windowed if tiling_problem(space.products.workload, space.gpu, windowed) is None else tiling


def _shallow(space: AttentionSpace, attention: AttentionSchedule) -> AttentionSchedule:
    """With few warps, and a ring of few tokens in whole stages of each team, none for tiles that a CTA has not."""
    slices = attention.tile_tokens // 16
    warps = max(_MATH_WARPS, slices)
    teams = warps // slices
    tokens = min(_RING_TOKENS, attention.span_tokens // attention.cluster, space.op.shape.max_length)
    stages = max(1, tokens // attention.tile_tokens // teams) * teams
    return replace(attention, math_warps=warps, finish_warps=_FINISH_WARPS, num_stages=stages)
