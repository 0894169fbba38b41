"""The timeline of an engine that runs ahead: weights before the wait, operands during the previous task."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.support.cases import H200, ordering, tiling, wgmma
from tuner.core.legal.legality import estimated_resources
from tuner.core.model.bounds import reference_us, tensor_us
from tuner.core.model.rates import CATALOGUE_RATES
from tuner.core.model.simulate import Timeline, simulate
from tuner.core.model.task_costs import HOP_BYTES_PER_US, costs_of, exchange_us
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify
from tuner.core.schedule.ordering import Assignment, Granularity, Raster, RasterKind, WaitPosition
from tuner.core.schedule.tiling import CacheHint, Tiling, Warpgroups
from tuner.ops.gemm.pairs import ffn_pair

LLAMA = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
#: One task of each op for 128 of 132 SMs.
ONE_EACH: dict[str, Any] = {"assignment": Assignment.STATIC, "reserved_sms": 4}


def timeline_of(workload: Workload, tiles: Tiling, **order: Any) -> Timeline:
    graph = tile_graph(workload, tiles)
    return simulate(
        verify(make_plan(graph, ordering(**order), H200), graph, estimated_resources(workload, tiles), H200)
    )


def test_weights_that_run_ahead_of_the_signals_shorten_the_wait() -> None:
    """Every CTA waits for all of the first op; meanwhile, its ring is filled from memory."""
    tiles = wgmma((16, 112, 64), (16, 32, 256), input_stages=4)
    times = {}
    for stages in (2, 4, 12):
        timeline = timeline_of(LLAMA, replace(tiles, num_stages=stages), **ONE_EACH)
        assert timeline.dram_bytes == timeline_of(LLAMA, tiling((16, 112), (16, 32))).dram_bytes
        times[stages] = timeline.makespan_us
    assert times[2] > times[4] + 0.3
    assert times[4] == pytest.approx(times[12], rel=0.03), "four stages saturate the memory"
    assert times[12] < 1.45 * reference_us(LLAMA, H200)


def test_a_window_of_one_stage_keeps_the_memory_waiting() -> None:
    tiles = wgmma((16, 112, 64), (16, 32, 256), num_stages=8, input_stages=4)
    narrow = timeline_of(LLAMA, replace(tiles, window=1), **ONE_EACH)
    wide = timeline_of(LLAMA, replace(tiles, window=6), **ONE_EACH)
    assert narrow.makespan_us > 1.1 * wide.makespan_us
    assert narrow.dram_bytes == wide.dram_bytes


def test_ctas_that_share_k_halve_the_steps_and_exchange_sums() -> None:
    """The same SMs and bytes: half the steps for each of the tiles, which are twice as wide and read the inputs half as
    often."""
    pair = ffn_pair(m=128, d_in=4096, d_hidden=8192, d_out=4096)
    alone, sharing = (wgmma((128, n, 64), num_warps=8, cluster_k=k, num_stages=3) for n, k in ((64, 1), (128, 2)))
    graphs = [tile_graph(pair, one) for one in (alone, sharing)]
    rates = CATALOGUE_RATES
    whole, shared = (costs_of(graph, H200, rates)[0] for graph in graphs)
    turns = [one.whole.busy_us / one.whole.step_us for one in (whole, shared)]
    assert turns == pytest.approx([64, 32])
    store_us = rates.wgmma.task_us + rates.wgmma.store_us_per_kib * 128 * 128 * 2 / 1024 / 2
    exchange = exchange_us(2, 128 * 128 * 4, H200, 24)
    assert shared.store_us == pytest.approx(store_us + exchange)
    assert exchange > exchange_us(2, 128 * 128 * 4, H200, 32) > 128 * 128 * 4 / 2 / HOP_BYTES_PER_US
    assert exchange_us(1, 128 * 128 * 4, H200, 24) == 0
    timelines = [timeline_of(pair, one) for one in (alone, sharing)]
    assert timelines[0].dram_bytes == timelines[1].dram_bytes
    assert timelines[1].link_bytes < 0.8 * timelines[0].link_bytes
    unshared = timeline_of(pair, replace(sharing, cluster_k=1), reserved_sms=66)
    assert timelines[1].makespan_us < 0.8 * unshared.makespan_us


def test_a_ring_of_two_stages_has_one_under_way_whichever_operand_it_holds() -> None:
    """On an H200, the pair took 64.2 microseconds with 5 stages of inputs, and 81.9 with 2."""
    pair = ffn_pair(m=64, d_in=4096, d_hidden=14336, d_out=4096)
    tiles = wgmma((64, 112, 128), (64, 64, 128), num_stages=5, input_stages=4, split_k=(1, 2))

    def time_us(**rings: int) -> float:
        return timeline_of(pair, replace(tiles, **rings), assignment=Assignment.STATIC).makespan_us

    whole = time_us()
    assert time_us(input_stages=2) > 1.15 * whole
    assert time_us(num_stages=2) > 1.15 * whole
    assert time_us(input_stages=5) == pytest.approx(whole, rel=0.02)
    assert time_us(window=4) == whole, "the last of five stages is held until the next one has arrived"
    assert time_us(window=1) > 1.15 * whole


def test_wide_wgmma_tiles_come_near_the_tensor_rate_and_narrow_ones_do_not() -> None:
    workload = ffn_pair(m=4096, d_in=4096, d_hidden=16896, d_out=4096)
    column = Raster(kind=RasterKind.COLUMN)
    deep: dict[str, Any] = {"num_stages": 4, "input_stages": 4, "num_warps": 8}
    wide, narrow = (
        timeline_of(workload, wgmma((128, n, 64), **deep), rasters=(column, column)).makespan_us for n in (256, 64)
    )
    assert 1.1 * tensor_us(workload, H200) < wide < 1.7 * tensor_us(workload, H200)
    assert narrow > 1.3 * wide


def test_a_wgmma_timeline_is_in_order_and_a_wait_that_is_over_costs_nothing() -> None:
    tiles = wgmma((128, 256, 64), num_stages=4, input_stages=4, num_warps=8)
    timeline = timeline_of(ffn_pair(m=1024, d_in=2048, d_hidden=8192, d_out=2048), tiles)
    for lane in timeline.spans:
        for span in lane:
            assert span.begin_us <= span.wait_us <= span.loaded_us <= span.computed_us <= span.end_us
    later = [span for lane in timeline.spans for span in lane[1:]]
    assert any(span.wait_us == span.begin_us for span in later)
    assert any(span.wait_us > span.begin_us for span in later)


def test_a_tile_that_waits_slice_by_slice_starts_on_what_is_there() -> None:
    """Half of the producer's tiles run in a second round: by slice, the readers' first half is done by then."""
    pair = ffn_pair(m=16, d_in=4096, d_hidden=8192, d_out=4096)
    tiles = wgmma((16, 32, 128), (16, 32, 128), num_stages=8, input_stages=4)
    by_task, by_slice = (
        timeline_of(pair, tiles, granularity=Granularity.CHUNK, sync_width=8, wait_position=position)
        for position in WaitPosition
    )
    assert by_slice.makespan_us < by_task.makespan_us
    assert by_slice.waited_us < by_task.waited_us


def test_a_slice_of_many_signals_is_waited_for_in_turn_with_its_inputs_and_one_of_few_is_not() -> None:
    """A slice of 512 columns is 32 tiles of the producer: 32 signals, or 4 of 8 tiles each, or 8 of 4."""
    tiles = wgmma((16, 16, 512), (16, 32, 512), num_stages=4, input_stages=4)
    by_tile, by_fours, by_eights = (
        timeline_of(LLAMA, tiles, granularity=granularity, sync_width=width, wait_position=WaitPosition.SLICE)
        for granularity, width in ((Granularity.TILE, 1), (Granularity.CHUNK, 4), (Granularity.CHUNK, 8))
    )
    assert by_tile.makespan_us > 1.1 * by_eights.makespan_us
    assert by_fours.makespan_us == pytest.approx(by_eights.makespan_us, rel=0.02)


def test_weights_that_are_held_back_until_the_inputs_are_there_come_later() -> None:
    tiles = wgmma((16, 112, 64), (16, 32, 256), num_stages=6, input_stages=4)
    ahead, held = (timeline_of(LLAMA, tiles, run_ahead=percent, **ONE_EACH) for percent in (100, 0))
    assert held.makespan_us > ahead.makespan_us + 0.3
    assert held.dram_bytes == ahead.dram_bytes


def test_a_hint_for_weights_changes_what_is_read_again() -> None:
    workload = ffn_pair(m=512, d_in=4096, d_hidden=14336, d_out=4096)
    tiles = wgmma((128, 128, 64), num_stages=4, input_stages=4, num_warps=8)
    first, normal = (
        timeline_of(workload, replace(tiles, weight_hint=hint)).dram_bytes
        for hint in (CacheHint.DEFAULT, CacheHint.NORMAL)
    )
    assert normal != first


def test_where_teams_take_turns_a_store_hides_behind_the_next_products() -> None:
    workload = ffn_pair(m=1024, d_in=2048, d_hidden=8192, d_out=2048)
    alone = wgmma((128, 128, 64), num_stages=6, input_stages=6)
    turns = replace(alone, num_warps=8, warpgroups=Warpgroups.PING_PONG)
    one, two = (timeline_of(workload, tiles) for tiles in (alone, turns))
    assert two.makespan_us < one.makespan_us
    for timeline, overlaps in ((one, False), (two, True)):
        pairs = [pair for lane in timeline.spans for pair in pairwise(lane)]
        assert any(after.begin_us < before.end_us for before, after in pairs) is overlaps
        assert all(after.begin_us >= before.computed_us for before, after in pairs)
    for lane in two.spans:
        assert all(later.begin_us >= first.end_us for first, later in zip(lane, lane[2:], strict=False))


def test_a_cluster_brings_shared_stages_once_through_the_link_and_so_do_neighbours_that_share_weights() -> None:
    workload = ffn_pair(m=1024, d_in=4096, d_hidden=14336, d_out=4096)
    slow = replace(CATALOGUE_RATES, l2_share=0.2)
    alone = wgmma((128, 128, 64), num_stages=4, input_stages=4, num_warps=8)
    pairs = wgmma((256, 128, 64), num_stages=4, input_stages=4, num_warps=8, cluster_m=2)
    times = {}
    for tiles, kind in ((alone, RasterKind.ROW), (pairs, RasterKind.ROW), (alone, RasterKind.COLUMN)):
        graph = tile_graph(workload, tiles)
        plan = make_plan(graph, ordering(rasters=(Raster(kind=kind),) * 2), H200)
        proven = verify(plan, graph, estimated_resources(workload, tiles), H200)
        times[tiles, kind] = simulate(proven, slow).makespan_us
    assert times[pairs, RasterKind.ROW] < 0.85 * times[alone, RasterKind.ROW]
    assert times[alone, RasterKind.COLUMN] < 0.85 * times[alone, RasterKind.ROW]
