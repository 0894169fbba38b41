from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import H200
from tests.support.lanes import each_value_once
from tests.support.spaces import space_of
from tuner.core.legal.legality import register_cap
from tuner.core.plan.order.split_k import num_tiles
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine
from tuner.core.space.simt_tilings import SimtTilings
from tuner.ops.gemm.pairs import ffn_pair

AMPERE = CATALOGUE["a100"]
LLAMA = ffn_pair(m=1, d_in=4096, d_hidden=14336, d_out=4096)
GATED = ffn_pair(m=4, d_in=4096, d_hidden=14336, d_out=4096, gated=True, bias=True)
SMALL = ffn_pair(m=2, d_in=64, d_hidden=96, d_out=8)


# In CI, the best tile shape fills one wave.
@pytest.mark.soak
@pytest.mark.parametrize(("gpu", "workload"), each_value_once([H200, AMPERE], [SMALL, GATED, LLAMA]))
def test_tilings_are_few_and_each_has_orderings(gpu: Gpu, workload: Workload) -> None:
    tilings = list(SimtTilings(workload, gpu).tilings())
    space = space_of(workload, gpu)
    assert 2 <= len(tilings) == len(set(tilings)) <= 100
    assert set(tilings) == {tiling for tiling in space.tilings if tiling.engine is Engine.SIMT}
    for tiling in tilings:
        assert {tile.m for tile in tiling.tiles} == {max(op.m for op in workload.tile_ops)}
        assert len(space.orderings(tiling)) > 0
        assert next(iter(space.orderings(tiling))).ctas_per_sm >= tiling.resident_ctas


def test_the_best_tile_shape_fills_one_wave_and_some_rings_leave_room_for_a_second_cta() -> None:
    tilings = list(SimtTilings(LLAMA, H200).tilings())
    up, down = LLAMA.tile_ops
    assert num_tiles(up, tilings[0].tiles[0]) == 128
    assert num_tiles(down, tilings[0].tiles[1]) == 128
    halves = [tiling for tiling in tilings if tiling.resident_ctas == 2]
    assert halves
    assert {register_cap(tiling) for tiling in halves} == {128}


def test_more_rows_or_ragged_ones_have_none() -> None:
    eight = replace(LLAMA, ops=tuple(replace(op, m=8) for op in LLAMA.tile_ops))
    ragged = ffn_pair(m=1, d_in=4100, d_hidden=14336, d_out=4096)
    for workload in (eight, ragged):
        assert list(SimtTilings(workload, H200).tilings()) == SimtTilings(workload, H200).guesses() == []


def test_neighbours_change_one_tile_shape_the_warps_or_the_ring() -> None:
    of_engine = SimtTilings(LLAMA, H200)
    first = of_engine.guesses()[0]
    near = list(of_engine.near(first))
    assert {tiling.num_warps for tiling in near} == {4, 8}
    assert {tiling.num_stages for tiling in near} >= set(range(2, 17))
    for tiling in near:
        changed = [tiling.tiles[op] != first.tiles[op] or tiling.num_parts(op) != first.num_parts(op) for op in (0, 1)]
        assert sum(changed) + (tiling.num_warps != first.num_warps) <= 1
