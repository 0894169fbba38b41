from __future__ import annotations

from math import isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import SMALL, graphs, ordering, small_gpu, tiling, wgmma, workloads
from tuner.core.model.bounds import Waves, dram_us, io_bytes, io_us, reference_us, tensor_us, wave_us
from tuner.core.model.simulate import simulate
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify
from tuner.errors import InvalidInput
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

H200 = CATALOGUE["h200"]


def test_few_rows_are_bound_by_the_weights_and_many_by_the_tensor_cores() -> None:
    few, many = (ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096) for m in (16, 1024))
    assert reference_us(few, H200) == dram_us(few, H200) == pytest.approx(48.99, abs=0.01)
    assert reference_us(many, H200) == tensor_us(many, H200) == pytest.approx(243.1, abs=0.1)


def test_a_task_too_many_costs_a_wave() -> None:
    full, spilled = Waves(num_tasks=264, num_ctas=132), Waves(num_tasks=265, num_ctas=132)
    assert (full.num_waves, full.num_in_tail, full.efficiency) == (2, 132, 1.0)
    assert (spilled.num_waves, spilled.num_in_tail) == (3, 1)
    assert spilled.efficiency == pytest.approx(265 / 396)


def test_one_op_takes_its_waves_and_fusing_fills_the_tail() -> None:
    pair = ffn_pair(m=128, d_in=512, d_hidden=133 * 64, d_out=131 * 64)
    tiles = tiling((128, 64), (128, 64), k=64)
    up, down, fused = (wave_us(tile_graph(pair, tiles, ops), H200) for ops in ((0,), (1,), None))
    tile_us = 1e6 * 2 * 128 * 64 * 512 * 132 / H200.tensor_flops_per_s
    assert up == pytest.approx(2 * tile_us)
    assert max(up, down) <= fused < up + down


def test_a_low_tile_of_wgmma_is_multiplied_as_a_whole_block() -> None:
    pair = ffn_pair(m=16, d_in=512, d_hidden=132 * 64, d_out=132 * 64)
    low, mma = tile_graph(pair, wgmma((16, 64, 64))), tile_graph(pair, tiling((16, 64), (16, 64), k=64))
    assert wave_us(low, H200) == pytest.approx(4 * wave_us(mma, H200))


# In CI, no order beats the roofline (test_simulate.py).
@pytest.mark.soak
@given(graphs(), st.integers(1, 5))
def test_no_simulated_launch_beats_the_waves(graph: TileGraph, num_sms: int) -> None:
    gpu = small_gpu(num_sms)
    plan = make_plan(graph, ordering(len(graph.workload.tile_ops)), gpu)
    assert simulate(verify(plan, graph, SMALL, gpu)).makespan_us >= wave_us(graph, gpu)


@given(workloads(), st.integers(6, 10**6))
def test_the_traffic_bound_falls_with_the_cache_down_to_the_compulsory_bytes(workload: Workload, cache: int) -> None:
    assert io_bytes(workload, cache) >= io_bytes(workload, 2 * cache)
    assert io_bytes(workload, 2**40) == workload.compulsory_bytes
    assert io_bytes(workload, cache) >= workload.compulsory_bytes


@pytest.mark.parametrize("cache_elements", [48, 120, 1000, 10_000])
def test_blocked_products_come_close_to_the_bound_and_never_below(cache_elements: int) -> None:
    """Blocks of side b of C, one column of A and one row of W at a time: b (b + 2) elements in the cache."""
    m, n, k = 256, 320, 512
    side = isqrt(cache_elements + 1) - 1
    row_blocks, col_blocks = -(-m // side), -(-n // side)
    moved = 2 * (col_blocks * m * k + row_blocks * n * k + m * n)
    bound = io_bytes(independent_pair((m, n, k), (1, 1, 1)), 2 * cache_elements)
    assert bound <= moved <= 1.5 * bound


def test_fusing_saves_at_most_a_round_trip_of_the_intermediate() -> None:
    pair = ffn_pair(m=512, d_in=1024, d_hidden=4096, d_out=1024)
    apart = independent_pair((512, 4096, 1024), (512, 1024, 4096))
    for cache in (2**14, 2**20, 2**23):
        saved = io_bytes(apart, cache) - io_bytes(pair, cache)
        assert 0 < saved <= 2 * 512 * 4096 * 2


def test_on_an_h200_the_pair_of_llama_is_compulsory_traffic_only() -> None:
    pair = ffn_pair(m=512, d_in=4096, d_hidden=14336, d_out=4096)
    assert io_us(pair, H200) == pytest.approx(dram_us(pair, H200))


def test_a_cache_of_less_than_three_elements_is_refused() -> None:
    with pytest.raises(InvalidInput, match="use at least 6"):
        io_bytes(ffn_pair(m=1, d_in=1, d_hidden=1, d_out=1), 5)
