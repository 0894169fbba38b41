"""Which tilings of the wgmma engine are offered, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.cases import H200, chain_of_three, gemms, wgmma
from tests.support.kept_tilings import listed_once
from tests.support.lanes import one_in, soak_unless
from tests.support.spaces import space_of
from tuner.core.legal.legality import tiling_problem
from tuner.core.plan.order.split_k import num_tiles
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.tiling import Engine, Epilogue, Tile, Tiling, Warpgroups
from tuner.core.space.wgmma_tile_shapes import MAX_COMBINATIONS
from tuner.core.space.wgmma_tilings import ENOUGH_STAGES, WgmmaTilings
from tuner.ops.gemm.pairs import ffn_pair, independent_pair


class Offered(WgmmaTilings):
    """Its tilings are listed once in a test run, since most tests have the same few workloads."""

    def tilings(self) -> Iterator[Tiling]:
        yield from listed_once("wgmma", self._workload, self._gpu, super().tilings)


LLAMA = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
LLAMA_70B = ffn_pair(m=16, d_in=8192, d_hidden=28672, d_out=8192)
GPT3_SLICE = ffn_pair(m=16, d_in=12288, d_hidden=6144, d_out=12288)
GATED = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096, gated=True, residual=True)
WORKLOADS = (
    LLAMA,
    LLAMA_70B,
    GPT3_SLICE,
    GATED,
    *(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096) for m in (1, 64, 65, 200, 512, 1024, 100_000)),
    ffn_pair(m=8, d_in=64, d_hidden=64, d_out=8),
    ffn_pair(m=16, d_in=512, d_hidden=1024, d_out=512),
    independent_pair((16, 1024, 4096), (700, 512, 64)),
    chain_of_three(100, (1024, 4096, 1024, 4096)),
)


#: In CI few rows, many rows, and the independent pair.
SOME = soak_unless(lambda place, _: place == 0, WORKLOADS)


def widths(workload: Workload, op: int) -> set[tuple[int, int, int]]:
    """(n, k, parts) of the op's offered tiles."""
    return {
        (tiling.tiles[op].n, tiling.tiles[op].k, tiling.num_parts(op)) for tiling in Offered(workload, H200).tilings()
    }


@pytest.mark.slow
@pytest.mark.parametrize("workload", SOME, ids=Workload.describe)
def test_what_is_offered_is_legal_different_and_a_few_thousand_at_most(workload: Workload) -> None:
    tilings = list(Offered(workload, H200).tilings())
    assert 1 <= len(tilings) == len(set(tilings)) <= 3 * 12 * MAX_COMBINATIONS
    for tiling in tilings:
        assert tiling.engine is Engine.WGMMA
        assert tiling.window < tiling.num_stages
    for tiling in tilings[::8]:
        assert tiling_problem(workload, H200, tiling) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "op", "shapes"),
    soak_unless(
        lambda place, _: place < 2,
        [
            (LLAMA, 0, {(112, 128, 1), (224, 64, 2)}),
            (LLAMA, 1, {(32, 256, 1), (128, 128, 4), (64, 128, 2)}),
            (LLAMA_70B, 0, {(224, 64, 1), (112, 128, 1)}),
            (LLAMA_70B, 1, {(128, 128, 2), (64, 128, 1)}),
            (GPT3_SLICE, 0, {(96, 128, 2), (48, 256, 1)}),
            (GPT3_SLICE, 1, {(96, 128, 1), (96, 64, 1)}),
            (GATED, 0, {(112, 64, 1)}),
        ],
    ),
)
def test_few_rows_are_cut_so_that_nearly_every_sm_has_one_task(
    workload: Workload, op: int, shapes: set[tuple[int, int, int]]
) -> None:
    assert shapes <= widths(workload, op)


@pytest.mark.slow
@pytest.mark.parametrize("workload", one_in(3, [LLAMA, LLAMA_70B, GPT3_SLICE]), ids=Workload.describe)
def test_tile_shapes_that_leave_a_quarter_of_the_sms_idle_are_not_offered_where_others_are(workload: Workload) -> None:
    for tiling in Offered(workload, H200).tilings():
        for index, (op, tile) in enumerate(zip(workload.tile_ops, tiling.tiles, strict=True)):
            tasks, lanes = num_tiles(op, tile) * tiling.num_parts(index), H200.num_clusters(tiling.cluster_size)
            assert tasks / (-(-tasks // lanes) * lanes) > 0.75


def first_guess(m: int) -> Tiling:
    return Offered(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), H200).guesses()[0]


# In CI, what is offered is legal and bounded.
@pytest.mark.soak
def test_the_first_guess_has_whole_waves() -> None:
    assert [tile.n for tile in first_guess(16).tiles] == [112, 32]
    assert ([tile.n for tile in first_guess(512).tiles], first_guess(512).split_k) == ([224, 256], (1, 2))
    assert [tile.n for tile in first_guess(1024).tiles] == [176, 256]
    assert {first_guess(m).tiles[0].m for m in (512, 1024)} == {128}
    assert [first_guess(m).tiles[0].m for m in (1, 17, 33, 64)] == [16, 32, 48, 64]


@pytest.mark.parametrize("m", [1, 16, 32, 64])
def test_guesses_of_few_rows_take_the_three_ways_by_turns(m: int) -> None:
    """One wave, two with a window, and a tile's k shared: a short search tries only the first few guesses."""
    guesses = Offered(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), H200).guesses()
    ways = [(one.window > 0, one.cluster_k > 1) for one in guesses[:6]]
    assert ways == [(False, False), (True, False), (False, True)] * 2


@pytest.mark.parametrize("m", [16, 32, 64])
def test_guesses_of_few_rows_differ_in_more_than_where_operands_lie_and_hold_enough_stages(m: int) -> None:
    guesses = Offered(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), H200).guesses()
    alone = [one for one in guesses if not one.window and one.cluster_k == 1]
    assert len({(one.tiles, one.split_k) for one in alone}) == len(alone) == 4
    assert {one.swap_ab for one in alone} == {False, True}
    assert min(one.num_stages for one in alone) >= ENOUGH_STAGES


def test_a_lone_op_has_its_cuts_both_ways() -> None:
    lone = gemms(16, ("o_proj", "x", 4096, 4096, {}))
    guesses = [one for one in Offered(lone, H200).guesses() if not one.window and one.cluster_k == 1]
    assert {one.tiles for one in guesses if one.swap_ab} & {one.tiles for one in guesses if not one.swap_ab}


def test_of_many_rows_a_guess_has_the_widest_tiles_there_are() -> None:
    def widths_of_guesses(m: int) -> list[list[int]]:
        guesses = Offered(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), H200).guesses()
        return [[tile.n for tile in one.tiles] for one in guesses if one.tiles[0].m == 128 and not one.split_k]

    assert [256, 256] in widths_of_guesses(4096)
    assert [256, 256] in widths_of_guesses(2048)
    assert [256, 256] not in widths_of_guesses(256)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "height"), one_in(3, [(40, 40), (1, 16), (16, 16)]))
def test_one_warpgroup_with_swapped_operands_shares_k_where_rows_are_few(m: int, height: int) -> None:
    offered = Offered(ffn_pair(m=m, d_in=8192, d_hidden=3584, d_out=8192), H200).tilings()
    shared = [one for one in offered if one.swap_ab and one.cluster_k > 1]
    assert {one.num_warps for one in shared} == {4}
    assert {tile.m for one in shared for tile in one.tiles} == {height}


@pytest.mark.parametrize("m", [65, 96, 100, 130, 192, 200, 300, 1000])
def test_tiles_are_as_high_as_the_rows_need(m: int) -> None:
    heights = Offered(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), H200).heights
    assert len(heights) > 1
    for height in heights:
        num_tile_rows = -(-m // height.m)
        step = (128 if height.m // height.cluster_m > 64 * height.groups else 16) * height.cluster_m
        assert num_tile_rows * (height.m - step) < m <= num_tile_rows * height.m


def test_an_op_has_tiles_of_its_own_height_where_two_row_counts_fill_a_wave() -> None:
    """Three tile rows fill a wave with the first op, two with the second. On an H200, a job of 400 trials ended with
    such tiles (`held_out_deep.json`)."""
    pair = ffn_pair(m=300, d_in=7168, d_hidden=2304, d_out=7168, gated=True)
    of_engine = Offered(pair, H200)
    guesses = of_engine.guesses()
    uneven = [one for one in guesses if len({tile.m for tile in one.tiles}) > 1]
    assert {tuple((tile.m, tile.n) for tile in one.tiles) for one in uneven} == {((104, 56), (152, 112))}
    assert {one.num_warps for one in uneven} == {4, 8}
    assert guesses.index(uneven[0]) == 1
    assert {one.tiles[1].n for one in of_engine.near(uneven[0]) if one.tiles[0] == uneven[0].tiles[0]} >= {112, 128}
    assert {one.tiles[0].n for one in of_engine.near(uneven[0]) if one.tiles[1] == uneven[0].tiles[1]} >= {56, 64}


@pytest.mark.parametrize("m", [16, 64, 96, 300, 1024])
def test_one_height_serves_both_ops_where_it_is_about_as_fast(m: int) -> None:
    guesses = Offered(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096, gated=True), H200).guesses()
    assert all(len({tile.m for tile in one.tiles}) == 1 for one in guesses)


def test_tasks_of_independent_ops_fill_a_wave_together() -> None:
    pair = independent_pair((1024, 1024, 4096), (1024, 1152, 4096))
    first = Offered(pair, H200).guesses()[0]
    num_tasks = sum(-(-op.m // t.m) * -(-op.n // t.n) for op, t in zip(pair.tile_ops, first.tiles, strict=True))
    assert not first.split_k
    assert 0.9 * H200.num_sms < num_tasks <= H200.num_sms


@pytest.mark.slow
@pytest.mark.parametrize("workload", SOME, ids=Workload.describe)
def test_guesses_are_offered_and_their_rings_take_all_the_memory(workload: Workload) -> None:
    of_engine = Offered(workload, H200)
    guesses = of_engine.guesses()
    assert set(guesses) <= set(of_engine.tilings())
    shapes = {(tuple((t.m, t.n) for t in one.tiles), one.split_k, one.swap_ab, one.cluster_k) for one in guesses}
    assert len(shapes) == len(guesses) > 0
    for tiling in guesses:
        deeper = replace(tiling, num_stages=tiling.num_stages + 1)
        if max(op.m for op in workload.tile_ops) > 64:  # both rings are as deep
            deeper = replace(deeper, input_stages=tiling.input_stages + 1)
        assert tiling_problem(workload, H200, deeper) is not None


# In CI, test_small_pairs.py has what is near.
@pytest.mark.soak
def test_two_warpgroups_take_turns_where_rows_are_many_and_nearby_where_they_are_few() -> None:
    for m, heights in ((16, set[int]()), (200, {64, 128}), (512, {128})):
        of_engine = Offered(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), H200)
        turns = [one for one in of_engine.tilings() if one.warpgroups is Warpgroups.PING_PONG]
        assert {(one.tiles[0].m, one.num_warps) for one in turns} == {(height, 8) for height in heights}
    first = Offered(LLAMA, H200).guesses()[0]
    turned = replace(first, num_warps=8, warpgroups=Warpgroups.PING_PONG)
    assert turned in set(Offered(LLAMA, H200).near(first))
    assert first in set(Offered(LLAMA, H200).near(turned))


# In CI, test_small_pairs.py has other heights nearby.
@pytest.mark.soak
def test_two_ctas_of_256_rows_and_tiles_of_unequal_heights_are_found_where_rows_are_many() -> None:
    workload = ffn_pair(m=4096, d_in=4096, d_hidden=14336, d_out=4096)
    of_engine = Offered(workload, H200)
    clusters = [one for one in of_engine.tilings() if one.cluster_m == 2]
    assert {max(tile.m for tile in one.cta_tiles) for one in clusters} == {128, 256}
    high = [one for one in of_engine.tilings() if one.tiles[0].m == 256 and one.cluster_size == 1 and not one.swap_ab]
    alike = high[0]
    near = [one for one in of_engine.near(alike) if one.tiles[0] == alike.tiles[0] and one.tiles[1].m == 128]
    assert Tile(m=128, n=256, k=64) in {one.tiles[1] for one in near}
    assert all(tiling_problem(workload, H200, one) is None for one in near)
    assert all(one.num_stages == one.input_stages for one in near)


# In CI, test_small_pairs.py has such heights.
@pytest.mark.soak
@pytest.mark.parametrize(("m", "is_there"), one_in(4, [(65, True), (64, False), (128, True), (129, False)]))
def test_two_ctas_of_64_rows_share_weights_where_they_cover_all_rows(m: int, is_there: bool) -> None:
    offered = Offered(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), H200)
    shared = [one for one in offered.tilings() if one.cluster_m == 2 and one.num_warps == 4]
    assert bool(shared) == is_there
    assert all(tile.m == -(-m // 32) * 32 for one in shared for tile in one.tiles)
    assert {tile.k for one in shared for tile in one.tiles} == ({64, 128, 256} if is_there else set())
    assert not is_there or any(one.cluster_m == 2 and one.num_warps == 4 for one in offered.guesses())


# In CI, test_small_pairs.py has tiles that the copy engine stores.
@pytest.mark.soak
def test_the_copy_engine_stores_high_tiles_and_others_nearby() -> None:
    for m, heights in ((16, set[int]()), (64, set[int]()), (200, {112, 128, 224, 256}), (512, {128, 176, 256, 512})):
        of_engine = Offered(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), H200)
        stored = [one for one in of_engine.tilings() if one.epilogue is Epilogue.TMA]
        assert {one.tiles[0].m for one in stored} == heights
        assert all(max(tile.n for tile in one.cta_tiles) >= 64 for one in stored)
    for workload in (LLAMA, WORKLOADS[8]):
        of_engine = Offered(workload, H200)
        first = of_engine.guesses()[0]
        [stored_first] = {one for one in of_engine.near(first) if one.epilogue is Epilogue.TMA}
        stages = {"num_stages": first.num_stages, "input_stages": first.input_stages}
        assert replace(stored_first, epilogue=Epilogue.DIRECT, **stages) == first
        assert tiling_problem(workload, H200, stored_first) is None


# In CI, test_small_pairs.py has CTAs that share k.
@pytest.mark.soak
def test_two_ctas_share_k_where_it_may_pay_and_four_nearby() -> None:
    shard = ffn_pair(m=256, d_in=8192, d_hidden=3584, d_out=8192, gated=True)
    for workload in (LLAMA, shard):
        of_engine = Offered(workload, H200)
        sharing = [one for one in of_engine.tilings() if one.cluster_k > 1]
        assert {(one.cluster_k, one.cluster_m, one.split_k) for one in sharing} == {(2, 1, ())}
        assert 0 < len(sharing) < len(list(of_engine.tilings())) / 2
        near = set(of_engine.near(sharing[0]))
        assert {1, 2, 4} <= {one.cluster_k for one in near if tiling_problem(workload, H200, one) is None}
        alone = next(one for one in of_engine.tilings() if one.cluster_k == 1 and not one.split_k)
        assert {1, 2, 4} <= {one.cluster_k for one in of_engine.near(alone) if one.tiles == alone.tiles}
        guessed = [one for one in of_engine.guesses() if one.cluster_k == 2]
        assert len(guessed) == 2
        assert all(-(-workload.tile_ops[0].m // tile.m) == 1 for tile in guessed[0].tiles)
    assert {one.num_warps for one in sharing if one.swap_ab} == {8}
    assert {one.tiles[0].m for one in sharing if one.swap_ab} == {256}
    many = ffn_pair(m=1024, d_in=4096, d_hidden=14336, d_out=4096)
    assert all(one.cluster_k == 1 for one in Offered(many, H200).guesses())


@pytest.mark.parametrize(
    ("workload", "gpu"),
    [(LLAMA, CATALOGUE["a100"]), (LLAMA, CATALOGUE["b200"]), (ffn_pair(m=16, d_in=60, d_hidden=64, d_out=64), H200)],
)
def test_where_the_engine_does_not_run_nothing_of_it_is_offered(workload: Workload, gpu: Gpu) -> None:
    of_engine = Offered(workload, gpu)
    assert list(of_engine.tilings()) == of_engine.guesses() == []
    assert {tiling.engine for tiling in space_of(workload, gpu).tilings} == {Engine.MMA}


def test_what_lies_near_tiles_that_ctas_of_a_cluster_slice_by_columns() -> None:
    """A slot of the ring holds a CTA's columns, not the cluster's: a job once failed because of this."""
    pair = ffn_pair(m=128, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.SILU, gated=True)
    sliced = wgmma((128, 112, 64), (128, 256, 64), num_stages=7, input_stages=7, num_warps=8, cluster_n=2)
    near = list(Offered(pair, H200).near(sliced))
    assert {one.cluster_n for one in near} >= {1, 2}
