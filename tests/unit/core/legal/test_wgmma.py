"""What the wgmma engine supports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import H200, ordering, wgmma
from tests.support.presets import decoder_block
from tuner.core.legal.legality import (
    check_schedule,
    dynamic_smem_bytes,
    engine_problem,
    estimated_resources,
    tiling_problem,
)
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.resources import occupancy
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.ordering import Ordering
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Epilogue, Tiling, Warpgroups
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair

LLAMA = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
GATED = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096, gated=True)


def check(tiles: Tiling, workload: Workload = LLAMA, gpu: Gpu = H200, order: Ordering | None = None) -> None:
    check_schedule(workload, gpu, Schedule.of(tiling=tiles, ordering=order or ordering()))


LEGAL = (
    wgmma((16, 112, 128), (16, 128, 128), num_stages=6),
    wgmma((16, 32, 256), num_stages=10),
    wgmma((16, 16, 512), num_stages=10),
    wgmma((32, 256, 64)),
    wgmma((64, 256, 64), (128, 128, 64)),
    wgmma((192, 80, 64)),
    wgmma((128, 256, 64), num_warps=8),
    wgmma((256, 128, 64), num_warps=8),
    wgmma((48, 64, 64)),
    wgmma((80, 64, 64), (112, 64, 64), num_warps=8),
    wgmma((144, 192, 64), (192, 64, 64), num_warps=12),
    wgmma((16, 64, 64), num_stages=16, input_stages=12, window=15),
    wgmma((16, 64, 64), num_stages=2, input_stages=2),
    wgmma((16, 112, 128), (16, 128, 128), num_warps=8, warpgroups=Warpgroups.PING_PONG),
    wgmma((64, 256, 64), (128, 128, 64), num_warps=8, warpgroups=Warpgroups.PING_PONG),
    wgmma((128, 224, 64), num_warps=8, warpgroups=Warpgroups.PING_PONG, cluster_m=2),
    wgmma((8, 48, 64), (8, 64, 64), swap_ab=True),
    wgmma((200, 64, 64), (104, 112, 64), swap_ab=True),
    wgmma((256, 80, 64), (256, 128, 64), num_warps=8, swap_ab=True),
    wgmma((72, 240, 64), num_warps=8, swap_ab=True),
    wgmma((192, 144, 64), num_warps=12, swap_ab=True),
    wgmma((128, 256, 64), num_warps=8, input_stages=4, epilogue=Epilogue.TMA),
    wgmma((16, 32, 128), (16, 64, 128), epilogue=Epilogue.TMA),
)


@pytest.mark.parametrize("tiles", LEGAL, ids=str)
def test_what_the_engine_can_compile_is_legal(tiles: Tiling) -> None:
    check(tiles)


@pytest.mark.parametrize(
    ("tiles", "sentence"),
    [
        (wgmma((16, 64, 64), num_warps=5), "5 warps: use 4 or 8 or 12"),
        (wgmma((40, 64, 64)), "m of 4 warps must be a multiple of 16 from 16 to 64, or a multiple of 64 up"),
        (wgmma((0, 64, 64)), "m of 4 warps must be a multiple of 16 from 16 to 64, or a multiple of 64 up"),
        (wgmma((80, 16, 64)), "m of 4 warps must be a multiple of 16 from 16 to 64, or a multiple of 64 up"),
        (wgmma((320, 16, 64)), "m of 4 warps must be a multiple of 16 from 16 to 64, or a multiple of 64 up"),
        (wgmma((64, 64, 64), num_warps=8), "m of 8 warps must be a multiple of 16 from 80 to 128, or"),
        (wgmma((192, 64, 64), num_warps=8), "m of 8 warps must be a multiple of 16 from 80 to 128, or"),
        (wgmma((128, 64, 64), num_warps=12), "m of 12 warps must be a multiple of 16 from 144 to 192$"),
        (wgmma((256, 64, 64), num_warps=12), "m of 12 warps must be a multiple of 16 from 144 to 192$"),
        (
            wgmma((16, 64, 64), warpgroups=Warpgroups.PING_PONG),
            "ping-pong of 4 warps: two warpgroups take turns, use 8",
        ),
        (wgmma((128, 136, 64), num_warps=8, warpgroups=Warpgroups.PING_PONG), "136 sums per thread: use at most 128"),
        (wgmma((16, 0, 64)), "n must be a positive multiple of 8"),
        (wgmma((20, 64, 64), swap_ab=True), "m must be a positive multiple of 8"),
        (wgmma((264, 64, 64), swap_ab=True), "264 rows of A; one instruction takes up to 256"),
        (wgmma((16, 56, 64), swap_ab=True), "56 rows of W: swapped, those of 4 warps must be a multiple of 16 from 16"),
        (wgmma((16, 64, 64), num_warps=8, swap_ab=True), "those of 8 warps must be a multiple of 16 from 80 to 256"),
        (wgmma((16, 272, 64), swap_ab=True), "272 rows of W: swapped"),
        (wgmma((200, 128, 64), swap_ab=True), "200 sums per thread: use at most 192"),
        (
            wgmma((16, 112, 64), split_k=(1, 2), swap_ab=True),
            "parts of 112 rows of W are not whole blocks: use up to 64",
        ),
        (
            wgmma((8, 16, 64), num_stages=8, input_stages=2, swap_ab=True),
            "tile 8x16x64 is read as 64 rows, 6144 bytes into the inputs' ring, which has 2048",
        ),
        (wgmma((16, 20, 64)), "n must be a positive multiple of 8"),
        (wgmma((16, 272, 64)), "272 rows of W; one instruction takes up to 256"),
        (wgmma((16, 64, 32)), "k must be one of 64, 128, 256, 512"),
        (wgmma((16, 64, 64), (16, 64, 192)), "tile 16x64x192: k must be one of"),
        (wgmma((256, 104, 64)), "208 sums per thread: use at most 192"),
        (wgmma((256, 200, 64), num_warps=8), "200 sums per thread: use at most 192"),
        (wgmma((256, 136, 64), num_warps=8, split_k=(1, 2)), "136 sums per thread: use at most 128"),
        (wgmma((256, 136, 64), num_warps=8, epilogue=Epilogue.TMA), "136 sums per thread: use at most 128"),
        (wgmma((256, 136, 64), num_warps=8, cluster_k=2), "136 sums per thread: use at most 128"),
        (wgmma((160, 200, 64), num_warps=12), "100 sums per thread: use at most 96"),
        (wgmma((16, 16, 64), num_stages=17), "17 stages of weights: use 2 to 16"),
        (wgmma((16, 16, 64), num_stages=1), "1 stages of weights: use 2 to 16"),
        (wgmma((16, 16, 64), input_stages=1), "1 stages of inputs: use 2 to 12"),
        (wgmma((16, 16, 64), input_stages=13), "13 stages of inputs: use 2 to 12"),
        (wgmma((16, 16, 64), window=-1), "window -1 of 4 stages: use 0 .no limit. to 3"),
        (wgmma((16, 16, 64), window=4), "window 4 of 4 stages: use 0 .no limit. to 3"),
        (wgmma((16, 16, 64), num_stages=2), "read as 64 rows, 6144 bytes into the weights' ring, which has 4096"),
        (
            wgmma((16, 56, 64), epilogue=Epilogue.TMA),
            "tma of 56 columns: TMA stores 64 at once; use direct",
        ),
        (wgmma((16, 64, 64), cluster_n=2, epilogue=Epilogue.TMA), "epilogue tma of 32 columns"),
        (wgmma((16, 256, 128), num_stages=4), "the stages take 274944 bytes; a CTA on H200 has 232448"),
    ],
)
def test_a_tiling_that_cannot_be_built_is_refused(tiles: Tiling, sentence: str) -> None:
    with pytest.raises(IllegalSchedule, match=sentence):
        check(tiles)


def test_a_chain_with_norms_has_fewer_sums_where_parts_are_added() -> None:
    """With 120 or more sums per thread, the compiler spilled."""
    block = decoder_block("llama3-8b", m=512)
    parts = wgmma((128, 128, 64), (128, 112, 64), (128, 224, 64), (128, 128, 64), num_warps=8, split_k=(1, 1, 2, 1))
    assert tiling_problem(block, H200, parts) is None
    whole = replace(parts, tiles=(*parts.tiles[:3], replace(parts.tiles[3], n=240)), num_stages=3, input_stages=3)
    assert tiling_problem(block, H200, whole) is None
    wider = replace(whole, split_k=(1, 1, 2, 2))
    problem = "120 sums per thread spill when parts are added and rows are normalized: use at most 112"
    assert problem in str(tiling_problem(block, H200, wider))
    assert tiling_problem(block, H200, replace(wider, split_k=())) is None


def test_shared_memory_is_two_rings_the_feed_and_the_barriers() -> None:
    tiles = wgmma((16, 112, 128), (16, 96, 256), num_stages=3, input_stages=4)
    rings = 4 * (16 * 256) * 2 + 3 * (96 * 256) * 2
    assert dynamic_smem_bytes(LLAMA, tiles) == rings + 4 * 64 + 16 * (4 + 3 + 4) + 80
    doubled = 4 * (16 * 256) * 2 + 3 * (2 * 96 * 256) * 2
    assert dynamic_smem_bytes(GATED, replace(tiles, tiles=(tiles.tiles[1],) * 2)) - doubled == 4 * 64 + 16 * 11 + 80


def test_what_the_copy_engine_stores_takes_two_chunks_of_shared_memory_a_warp() -> None:
    for num_warps, tile_m in ((4, 64), (8, 128), (12, 192)):
        tiles = wgmma((tile_m, 64, 64), num_warps=num_warps)
        stored = replace(tiles, epilogue=Epilogue.TMA)
        assert dynamic_smem_bytes(LLAMA, stored) - dynamic_smem_bytes(LLAMA, tiles) == num_warps * 2 * 16 * 64 * 2


def test_a_gated_op_counts_both_its_rows_of_w() -> None:
    check(wgmma((16, 128, 64), (16, 256, 64)), GATED)
    with pytest.raises(IllegalSchedule, match="288 rows of W, of a gate and an up projection; one instruction"):
        check(wgmma((16, 144, 64), (16, 256, 64)), GATED)
    with pytest.raises(IllegalSchedule, match="256 sums per thread"):
        check(wgmma((128, 128, 64)), GATED)


def test_where_ctas_share_k_a_gated_op_has_fewer_sums_since_the_compiler_takes_long() -> None:
    shared = wgmma((128, 112, 64), (128, 256, 64), num_warps=8, cluster_k=2)
    check(shared, GATED)
    check(replace(shared, tiles=wgmma((128, 256, 64)).tiles), LLAMA)
    larger = replace(shared, tiles=wgmma((128, 120, 64), (128, 256, 64)).tiles)
    check(replace(larger, cluster_k=1), GATED)
    with pytest.raises(IllegalSchedule, match="120 sums per thread: use at most 112"):
        check(larger, GATED)


def test_parts_with_a_bias_leave_two_warpgroups_room_for_fewer_sums() -> None:
    biased = ffn_pair(m=512, d_in=4096, d_hidden=14336, d_out=4096, bias=True)
    whole = wgmma((128, 256, 64), num_warps=8)
    check(whole, biased)
    check(
        replace(whole, split_k=(1, 2)),
        replace(biased, ops=(biased.tile_ops[0], replace(biased.tile_ops[1], bias=False))),
    )
    check(replace(whole, tiles=wgmma((128, 224, 64)).tiles, split_k=(1, 2)), biased)
    with pytest.raises(
        IllegalSchedule, match=(r"128 sums per thread spill when parts and a bias are added: .* most 112")
    ):
        check(replace(whole, split_k=(1, 2)), biased)
    turns = wgmma((64, 256, 64), num_warps=8, split_k=(1, 2), warpgroups=Warpgroups.PING_PONG)
    for workload, sums in ((LLAMA, "128 sums per thread"), (biased, "128 sums per thread and a bias")):
        with pytest.raises(IllegalSchedule, match=rf"{sums} spill with ping-pong when parts are added"):
            check(turns, workload)
    low = replace(turns, tiles=wgmma((64, 256, 64), (64, 112, 64)).tiles)
    check(low, LLAMA)
    with pytest.raises(
        IllegalSchedule, match=r"128 sums per thread and a bias spill with ping-pong when parts are added"
    ):
        check(low, biased)
    with pytest.raises(IllegalSchedule, match=r"128 sums per thread spill with ping-pong in clusters: use at most 112"):
        check(replace(turns, split_k=(), tiles=wgmma((128, 256, 64)).tiles, cluster_m=2))
    check(replace(turns, split_k=()), biased)
    check(replace(turns, num_warps=4, warpgroups=Warpgroups.COOPERATIVE), biased)


def test_what_an_epilogue_loads_or_computes_leaves_two_warpgroups_room_for_fewer_sums() -> None:
    high = wgmma((256, 192, 64), (256, 192, 64), num_warps=8)
    check(high)
    for option in ({"bias": True}, {"residual": True}, {"activation": Activation.GELU}):
        rich = replace(LLAMA, ops=(replace(LLAMA.tile_ops[0], **option), LLAMA.tile_ops[1]))
        with pytest.raises(IllegalSchedule, match="192 sums per thread: use at most 176"):
            check(high, rich)
        check(replace(high, tiles=wgmma((256, 176, 64), (256, 192, 64)).tiles), rich)
        check(replace(high, tiles=wgmma((192, 256, 64)).tiles, swap_ab=True), rich)
        check(wgmma((128, 192, 64), num_warps=4), rich)


def test_three_warpgroups_that_add_parts_store_for_themselves() -> None:
    parts = wgmma((192, 64, 64), (192, 64, 64), num_warps=12, split_k=(1, 2))
    check(parts)
    check(replace(parts, split_k=(), epilogue=Epilogue.TMA))
    with pytest.raises(IllegalSchedule, match="epilogue tma with 12 warps that add parts spills: use direct"):
        check(replace(parts, epilogue=Epilogue.TMA))


def test_swapped_operands_of_a_gated_op_share_the_rows_of_both_projections() -> None:
    gated = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.SILU, gated=True)
    check(wgmma((16, 24, 64), (16, 64, 64), swap_ab=True), gated)
    check(wgmma((16, 128, 64), (16, 256, 64), swap_ab=True), gated)
    with pytest.raises(IllegalSchedule, match="272 rows of W: swapped"):
        check(wgmma((16, 136, 64), (16, 64, 64), swap_ab=True), gated)
    with pytest.raises(IllegalSchedule, match=r"its weights, 48 rows of 1 lines: .* multiple of 16 rows"):
        check(wgmma((16, 24, 64), (16, 64, 64), swap_ab=True, cluster_m=2, num_warps=4), gated)
    odd = ffn_pair(m=16, d_in=4072, d_hidden=14336, d_out=4096, activation=Activation.SILU, gated=True)
    with pytest.raises(IllegalSchedule, match="has k 4072: swapped operands of a gated op need a multiple of 64"):
        check(wgmma((16, 24, 64), (16, 64, 64), swap_ab=True), odd)


def test_parts_of_two_ops_leave_two_warpgroups_room_for_fewer_sums() -> None:
    pair = ffn_pair(m=512, d_in=4096, d_hidden=14336, d_out=4096)
    check(wgmma((128, 224, 64), (128, 256, 64), num_warps=8, split_k=(2, 2)), pair)
    check(wgmma((128, 232, 64), (128, 256, 64), num_warps=8, split_k=(1, 2)), pair)
    with pytest.raises(IllegalSchedule, match=(r"128 sums per thread spill when another op adds parts: .* most 112")):
        check(wgmma((128, 232, 64), (128, 256, 64), num_warps=8, split_k=(2, 2)), pair)


def test_parts_leave_three_warpgroups_room_for_fewer_sums() -> None:
    check(wgmma((192, 192, 64), (192, 136, 64), num_warps=12, split_k=(1, 2)))
    with pytest.raises(IllegalSchedule, match="72 sums per thread spill when 12 warps add parts: use at most 68"):
        check(wgmma((192, 192, 64), (192, 144, 64), num_warps=12, split_k=(1, 2)))


@pytest.mark.parametrize(("tile_m", "num_warps"), [(128, 4), (128, 8), (192, 12)])
def test_one_such_cta_fits_an_sm(tile_m: int, num_warps: int) -> None:
    tiles = wgmma((tile_m, 64, 64), num_stages=2, input_stages=2, num_warps=num_warps)
    assert estimated_resources(LLAMA, tiles).num_threads == 32 * num_warps + 128
    assert occupancy(estimated_resources(LLAMA, tiles), H200) == 1
    with pytest.raises(IllegalSchedule, match="registers of H200 allow 1 such CTAs per SM, not 2"):
        check(tiles, order=ordering(ctas_per_sm=2))


def test_the_engine_is_for_hopper_and_for_rows_of_whole_16_bytes() -> None:
    odd_n = ffn_pair(m=16, d_in=64, d_hidden=64, d_out=68)
    odd_k = ffn_pair(m=16, d_in=60, d_hidden=64, d_out=64)
    assert engine_problem(LLAMA, H200, Engine.WGMMA) is None
    assert engine_problem(odd_n, H200, Engine.MMA) is engine_problem(odd_k, H200, Engine.MMA) is None
    with pytest.raises(IllegalSchedule, match="down has n 68 and k 64: TMA needs multiples of 8, use mma"):
        check(LEGAL[0], odd_n)
    with pytest.raises(IllegalSchedule, match="up has n 64 and k 60: TMA needs multiples of 8, use mma"):
        check(LEGAL[0], odd_k)
    for other in ("a100", "rtx4090", "b200"):
        with pytest.raises(IllegalSchedule, match=r"the wgmma engine needs 9\.0, use"):
            check(LEGAL[0], gpu=CATALOGUE[other])
    with pytest.raises(IllegalSchedule, match="161 SMs: the wgmma engine supports up to 160 CTAs"):
        check(LEGAL[0], gpu=replace(H200, num_sms=161))


def test_rings_of_its_own_mean_nothing_to_the_other_engine() -> None:
    mma = replace(wgmma((16, 64, 64)), engine=Engine.MMA)
    with pytest.raises(IllegalSchedule, match="3 input stages, window 0: the mma engine has one ring, use 0 and 0"):
        check(mma)
    with pytest.raises(IllegalSchedule, match="0 input stages, window 1"):
        check(replace(mma, input_stages=0, window=1))
    check(replace(mma, input_stages=0))
    with pytest.raises(IllegalSchedule, match="epilogue tma: the threads of the mma engine store their own"):
        check(replace(mma, input_stages=0, epilogue=Epilogue.TMA))
    with pytest.raises(
        IllegalSchedule, match="ping_pong: all warps of the mma engine share each task; use cooperative"
    ):
        check(replace(mma, input_stages=0, warpgroups=Warpgroups.PING_PONG))
