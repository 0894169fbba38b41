"""The forecast of decode attention: bytes at a rate that CTAs share, and the effect of lengths."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.ops.attention.costs.timeline import attention_timeline, attention_us, loads_of
from tuner.ops.attention.plans.tasks import AttentionPlan, assign
from tuner.ops.attention.schedule import AttentionEngine, AttentionTiling
from tuner.ops.attention.shapes.form import AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention

OP = DecodeAttention(sequences=16, kv_heads=8, query_heads=4, head_dim=128, max_length=2048)
H200 = CATALOGUE["h200"]
FULL = [2048] * 16


def plan_of(span: int, ctas: int = 132) -> AttentionPlan:
    return assign(OP, span_tokens=span, columns=8, num_queues=ctas, contiguous=False)


def tiling(stages: int) -> AttentionTiling:
    return AttentionTiling(head_dim=128, columns=8, tile_tokens=64, num_stages=stages, math_warps=8)


def forecast(span: int, lengths: list[int], ctas: int = 132, stages: int = 6) -> float:
    return attention_us(plan_of(span, ctas), lengths, H200, tiling=tiling(stages))


@pytest.mark.parametrize("gpu", ["a100", "rtx4090"])
def test_a_gpu_without_a_copy_engine_is_held_back_by_its_memory_where_there_are_many_ctas(gpu: str) -> None:
    """With many CTAs it is limited by memory; a single CTA with small tiles is limited by its warps' copies, too."""
    card = CATALOGUE[gpu]
    by_warp = replace(tiling(4 if gpu == "a100" else 2), engine=AttentionEngine.MMA)
    plan = assign(OP, span_tokens=2048, columns=8, num_queues=card.num_sms, contiguous=False)
    least_us = 1e6 * OP.cache_bytes(16 * 2048) / card.dram_bytes_per_s
    assert least_us < attention_us(plan, FULL, card, tiling=by_warp) < 2.5 * least_us
    alone = replace(OP, sequences=1, kv_heads=1, max_length=8192)
    one = assign(alone, span_tokens=8192, columns=8, num_queues=1, contiguous=False)
    small = replace(tiling(16), tile_tokens=16)
    by_tma = attention_us(one, [8192], H200, tiling=small)
    assert attention_us(one, [8192], H200, tiling=replace(small, engine=AttentionEngine.MMA)) > 1.05 * by_tma


def test_what_lengths_deal_is_more_even_than_what_a_plan_does() -> None:
    lengths = [64, 2048] * 8
    planned = assign(OP, span_tokens=256, columns=8, num_queues=132, contiguous=False)
    assigned = replace(planned, by_length=True)
    shares = [loads_of(plan, lengths, 64) for plan in (planned, assigned)]
    assert shares[0][0].sum() == shares[1][0].sum()
    assert shares[0][1].sum() == shares[1][1].sum()
    assert np.ptp(shares[1][1]) == 1
    assert np.ptp(shares[0][1]) > 1
    assert shares[1][0].max() < shares[0][0].max()


def test_all_bytes_are_some_ctas() -> None:
    num_bytes, num_tasks = loads_of(plan_of(256), FULL, 64)
    assert num_bytes.sum() == OP.cache_bytes(16 * 2048)
    assert num_tasks.sum() == 16 * 8 * 8


def test_empty_spans_cost_nothing_and_a_tile_is_read_whole() -> None:
    num_bytes, num_tasks = loads_of(plan_of(256), [257] * 16, 64)
    assert num_bytes.sum() == OP.cache_bytes(16 * 320)
    assert num_tasks.sum() == 16 * 8 * 2


def test_a_window_reads_its_own_tiles_alone() -> None:
    plan = replace(plan_of(256), form=AttentionForm(window=512))
    num_bytes, num_tasks = loads_of(plan, FULL, 64)
    assert num_bytes.sum() == OP.cache_bytes(16 * 512)
    assert num_tasks.sum() == 16 * 8 * 2


def test_a_forecast_is_above_its_bytes_and_grows_with_lengths() -> None:
    floor = 1e6 * OP.cache_bytes(16 * 2048) / H200.dram_bytes_per_s
    assert floor < forecast(2048, FULL) < 1.6 * floor
    assert forecast(2048, [64] * 16) < forecast(2048, [1024] * 16) < forecast(2048, FULL)


def test_few_ctas_are_bound_by_their_ports() -> None:
    assert forecast(2048, FULL, ctas=8) > 3 * forecast(2048, FULL)


def test_small_pages_bind_who_asks_where_shares_are_uneven() -> None:
    def us(page_tokens: int, lengths: list[int]) -> float:
        pages = PagedCache(num_pages=16 * 2048 // page_tokens, page_tokens=page_tokens)
        plan = replace(plan_of(2048), form=AttentionForm(paged=pages))
        return attention_us(plan, lengths, H200, tiling=tiling(6))

    assert us(16, FULL) == us(64, FULL) == forecast(2048, FULL)
    assert us(16, [2048] + [64] * 15) > 1.1 * us(64, [2048] + [64] * 15)


def test_a_short_ring_has_too_little_under_way() -> None:
    assert forecast(2048, FULL, stages=2) < forecast(2048, FULL, ctas=16, stages=2)
    assert forecast(2048, FULL, ctas=16, stages=6) < forecast(2048, FULL, ctas=16, stages=2)


def test_a_long_sequence_is_split_with_profit() -> None:
    lengths = [2048] + [64] * 15
    assert forecast(256, lengths) < forecast(2048, lengths)


def test_spans_that_meet_cost_more_than_one_span() -> None:
    assert forecast(1024, FULL) > forecast(2048, FULL)
    assert np.isfinite(forecast(2048, [0] * 16))


@pytest.mark.parametrize("tokens", [0, 64])
def test_what_a_launch_costs_at_least_is_its_begin(tokens: int) -> None:
    assert forecast(2048, [tokens] * 16) > 2.0


@pytest.mark.parametrize("by_length", [False, True])
def test_a_timeline_has_each_live_task_in_its_queue_and_ends_with_the_forecast(by_length: bool) -> None:
    lengths = [64, 2048, 700, 0] * 4
    plan = replace(plan_of(256), by_length=by_length)
    rows = attention_timeline(plan, lengths, H200, tiling=tiling(6))
    assert len(rows) == sum(len(plan.live_spans(length)) for length in lengths) * OP.kv_heads
    assert len({row.task for row in rows}) == len(rows)
    assert max(row.times_us[-1] for row in rows) == pytest.approx(
        attention_us(plan, lengths, H200, tiling=tiling(6)), rel=1e-9
    )
    for queue in range(plan.num_queues):
        own = [row.times_us for row in rows if row.queue == queue]
        assert all(sorted(times) == list(times) for times in own)
        assert all(before[2] == after[0] for before, after in pairwise(own))
