"""Tilings, cuts and splits of problems so small that all are listed in a moment."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from tests.support.cases import H200, small_gpu
from tests.support.cases import tiling as tiled
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.ordering import Granularity, SplitTiles, WaitPosition
from tuner.core.schedule.tiling import Epilogue, Warpgroups
from tuner.core.space.heights import Height
from tuner.core.space.space import Space
from tuner.core.space.wgmma_tile_shapes import MAX_TIMED, WgmmaTileShapes
from tuner.core.space.wgmma_tilings import WgmmaTilings
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair


def offered(m: int, d: int = 256, hidden: int = 512) -> WgmmaTilings:
    return WgmmaTilings(ffn_pair(m=m, d_in=d, d_hidden=hidden, d_out=d), H200)


def test_nearby_warpgroups_take_turns_ctas_share_k_and_the_copy_engine_stores() -> None:
    of_engine = offered(16)
    first = of_engine.guesses()[0]
    near = set(of_engine.near(first))
    turned = replace(first, num_warps=8, warpgroups=Warpgroups.PING_PONG)
    assert turned in near
    assert first in set(of_engine.near(turned))
    assert {one.cluster_k for one in near} == {1, 2, 4}
    [stored] = {one for one in near if one.epilogue is Epilogue.TMA}
    assert stored.but(epilogue=Epilogue.DIRECT, num_stages=first.num_stages, input_stages=first.input_stages) == first


@pytest.mark.parametrize(("m", "height"), [(64, None), (65, 96), (128, 128), (129, None)])
def test_two_ctas_of_few_rows_share_weights_where_they_cover_all_rows(m: int, height: int | None) -> None:
    shared = [one.m for one in offered(m).heights if one.cluster_m == 2 and one.num_warps == 4]
    assert shared == ([] if height is None else [height])


@pytest.mark.parametrize(("m", "heights"), [(16, set[int]()), (80, {96})])
def test_the_copy_engine_stores_tiles_of_more_than_few_rows(m: int, heights: set[int]) -> None:
    tilings = list(offered(m, hidden=2048).tilings())
    assert {one.tiles[0].m for one in tilings if one.epilogue is Epilogue.TMA} == heights


def test_of_many_rows_a_guess_shares_k_where_that_looks_faster_alone() -> None:
    assert {one.cluster_k for one in offered(512, 512, 1024).guesses()} == {1, 2}
    assert {one.cluster_k for one in offered(1024, 512, 1024).guesses()} == {1}


def test_a_height_of_another_op_is_near_and_low_ones_with_high_ones() -> None:
    of_engine = offered(512)
    high = [one for one in of_engine.tilings() if one.tiles[0].m == 256 and one.cluster_size == 1 and not one.swap_ab]
    near = {tuple(tile.m for tile in one.tiles) for one in of_engine.near(high[0])}
    assert {(128, 256), (256, 128)} <= near


def of_one_input(*widths: int) -> Workload:
    ops = tuple(GemmOp(name=f"op{i}", m=16, n=n, k=256) for i, n in enumerate(widths))
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


def test_the_cuts_of_independent_ops_that_are_timed_are_bounded_and_equal_ops_are_cut_alike() -> None:
    """Eight ops of eight widths have 10^8 cuts and more."""
    height = Height(16, 4)
    shapes = WgmmaTileShapes(of_one_input(*range(256, 768, 64)), H200)
    assert 1 < sum(1 for _ in islice(shapes._batched(height), MAX_TIMED + 1)) <= MAX_TIMED
    alike = WgmmaTileShapes(of_one_input(512, 256, 256), H200)
    choices = list(alike._batched(height))
    assert all(second == third for _, second, third in choices)
    assert any(first.tile != second.tile for first, second, _ in choices)


def test_a_tail_is_split_first_where_tiles_fill_more_than_a_wave_and_all_tiles_where_they_do_not() -> None:
    space = Space(ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256), small_gpu(7))
    split = tiled((16, 32), (16, 32), split=(2, 1))
    assert space.split_tiles(split) == (SplitTiles.TAIL, SplitTiles.STREAM, SplitTiles.ALL)
    assert space.split_tiles(tiled((64, 128), (64, 128), split=(2, 1))) == (SplitTiles.ALL,)


def test_a_finer_signal_is_near_together_with_a_wait_by_slice() -> None:
    space = Space(ffn_pair(m=30, d_in=32, d_hidden=60, d_out=40), small_gpu(7))
    one = next(iter(space))
    assert (one.ordering.granularity, one.ordering.wait_position) == (Granularity.ROW, WaitPosition.TASK)
    near = {(other.ordering.granularity, other.ordering.wait_position) for other in space.neighbours(one)}
    assert (Granularity.TILE, WaitPosition.SLICE) in near
