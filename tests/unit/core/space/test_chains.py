"""The space of chains: its size, its legality, and how ops are split."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.cases import H200, decoder_block, ordering, wgmma
from tests.support.lanes import one_in
from tests.support.presets import decoder_block as block_of_a_model
from tuner.core.legal.legality import runs_problem
from tuner.core.plan.order.split_k import num_tiles
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import Assignment, Interleave, InterleaveKind, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.core.space.combined import best_together, num_each
from tuner.core.space.ordering_values import near_run_starts, run_starts_of
from tuner.core.space.space import Space
from tuner.core.space.wgmma_tile_shapes import MAX_TIMED, TileShape, balanced_us
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search.model.axes import distributions, from_params, to_params
from tuner.search.model.pool import in_runs

BLOCK = block_of_a_model("llama3-8b", m=16)


def eight_ops() -> Workload:
    ops = tuple(GemmOp(name=f"op{i}", m=2, n=512, k=512, source=f"op{i - 1}" if i else "x") for i in range(8))
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload", one_in(2, [decoder_block(16, 512, 512, 512, heads=512), eight_ops()]), ids=["four", "eight"]
)
def test_the_tilings_of_a_chain_are_bounded_legal_and_of_every_engine(workload: Workload) -> None:
    space = Space(workload, H200)
    by_engine = Counter(tiling.engine for tiling in space.tilings)
    assert len(set(space.tilings)) == len(space.tilings) < 20_000
    assert set(by_engine) == set(Engine) - ({Engine.SIMT} if workload.tile_ops[0].m > 4 else set())
    drawn = space.sample(random.Random(1), 30)
    assert all(space.is_legal(schedule) for schedule in drawn)
    assert len({schedule.tiling.engine for schedule in drawn}) == len(by_engine)


@pytest.mark.slow
def test_small_ops_of_a_chain_are_offered_in_parts_while_large_ones_stay_whole() -> None:
    shard = block_of_a_model("llama3-70b", m=16, tp=8, has_reduce=False)
    splits = {tuple(tiling.num_parts(op) > 1 for op in range(4)) for tiling in Space(shard, H200).tilings}
    assert any(split[3] and not split[1] for split in splits)


def test_tiles_of_a_small_op_are_widened_to_a_slot_of_the_ring_in_parts_that_keep_the_sms_busy() -> None:
    shard = block_of_a_model("llama3-70b", m=64, tp=8, has_reduce=False)
    space = Space(shard, H200)
    narrow = wgmma((64, 64, 128), (64, 32, 128), (64, 64, 128), (64, 40, 128), split_k=(1, 1, 1, 4))
    narrow = replace(narrow, num_stages=9, input_stages=5, ahead_window=2)
    (wide,) = space.widened(narrow)
    assert (wide.tiles[3].n, wide.split_k) == (64, (1, 1, 1, 6))
    assert wide.tiles[:3] == narrow.tiles[:3]
    assert not space.widened(wide), "the slots are full"
    order = ordering(4, assignment=Assignment.STATIC)
    assert wide in {one.tiling for one in space.neighbours(Schedule.of(tiling=narrow, ordering=order))}
    large = Space(block_of_a_model("llama3-8b", m=64), H200)
    assert not large.widened(narrow), "the rings have space for a part of each single op"
    assert not Space(ffn_pair(m=64, d_in=8192, d_hidden=3584, d_out=8192), H200).widened(wgmma(*[(64, 32, 128)] * 2))


def test_stages_of_a_chain_become_twice_as_deep_with_as_many_bytes_under_way() -> None:
    shard = block_of_a_model("llama3-70b", m=16, tp=8, has_reduce=False)
    space = Space(shard, H200)
    flat = wgmma((16, 64, 128), (16, 32, 128), (16, 64, 128), (16, 64, 128), split_k=(1, 1, 1, 6), swap_ab=True)
    flat = replace(flat, num_stages=12, input_stages=6, window=3, ahead_window=2)
    deep = space.twice_as_deep(flat)
    assert {tile.k for one in deep for tile in one.tiles} == {256}
    assert [tile.n for tile in deep[0].tiles] == [tile.n for tile in flat.tiles]
    assert {(one.window, one.ahead_window) for one in deep} == {(2, 1)}
    assert {(6, 4), (5, 6), (5, 8)} <= {(one.num_stages, one.input_stages) for one in deep}
    order = ordering(4, assignment=Assignment.STATIC)
    near = {one.tiling for one in space.neighbours(Schedule.of(tiling=flat, ordering=order))}
    assert set(deep) <= near
    assert all(space.is_legal(Schedule.of(tiling=one, ordering=order)) for one in deep)


def test_stages_as_deep_as_an_op_has_columns_become_no_deeper() -> None:
    shard = block_of_a_model("llama3-70b", m=16, tp=8, has_reduce=False)
    deep = wgmma((16, 16, 512), (16, 16, 512), (16, 16, 512), (16, 16, 512))
    assert not Space(shard, H200).twice_as_deep(deep)
    assert not Space(ffn_pair(m=64, d_in=8192, d_hidden=3584, d_out=8192), H200).twice_as_deep(wgmma((64, 32, 64)))


def test_what_is_put_together_is_bounded_and_begins_with_the_best() -> None:
    ranked = [[0, 1, 2], [0, 1], [0, 1, 2, 3]]
    assert [num_each(3, most) for most in (1, 8, 26, 27)] == [1, 2, 2, 3]
    assert len(list(best_together(ranked, 8))) == 8
    assert list(best_together(ranked, 7)) == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]


def shape(num_tasks: int, task_us: float) -> TileShape:
    tiling = Space(BLOCK, H200)._wgmma._combined
    some = next(iter(tiling.values()))[0][0]
    return TileShape(
        tile=some.tile, parts=1, has_tail=False, rate=1.0, num_tasks=num_tasks, task_us=task_us, num_sums=1
    )


def test_ops_that_fill_each_others_waves_are_balanced() -> None:
    """On six SMs, two ops of three tasks each fill one wave together, but two of four do not."""
    fitting, not_fitting = (shape(3, 1.0), shape(3, 1.0)), (shape(4, 1.0), shape(4, 1.0))
    assert balanced_us(fitting, 6) == (1 + 2) / 2
    assert balanced_us(not_fitting, 6) == (2 + 2) / 2


def of_one_input(m: int, *widths: int, k: int = 4096) -> Workload:
    ops = tuple(GemmOp(name=f"op{i}", m=m, n=n, k=k) for i, n in enumerate(widths))
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


# In CI, test_small_pairs.py has ops that are cut alike.
@pytest.mark.soak
def test_ops_of_one_input_are_cut_so_that_their_tiles_fill_the_sms_together() -> None:
    """k and v alone leave SMs idle; q, k and v together give every SM a tile. Ops of one shape are split alike."""
    space = Space(of_one_input(16, 4096, 1024, 1024), H200)
    first = space.guesses[0]
    tiles = enumerate(zip(space.workload.tile_ops, first.tiles, strict=True))
    num_tasks = [num_tiles(op, tile) * first.num_parts(index) for index, (op, tile) in tiles]
    assert max(num_tasks[1:]) < H200.num_sms // 2
    assert 0.9 * H200.num_sms <= sum(num_tasks) <= H200.num_sms
    by_wgmma = [tiling for tiling in space.tilings if tiling.engine is Engine.WGMMA]
    assert len(by_wgmma) > 1000
    assert all(tiling.tiles[1] == tiling.tiles[2] for tiling in by_wgmma)
    assert any(tiling.tiles[0] != tiling.tiles[1] for tiling in by_wgmma)


# In CI, test_small_pairs.py has a bounded number of cuts.
@pytest.mark.soak
def test_of_many_independent_ops_a_bounded_number_of_cuts_is_timed() -> None:
    """Eight ops of eight widths have 10^18 combinations."""
    space = Space(of_one_input(16, *range(512, 1536, 128)), H200)
    heights = space._wgmma.heights[::3]
    assert all(1 < sum(1 for _ in space._wgmma._shapes._batched(height)) <= MAX_TIMED for height in heights)
    assert space.guesses


def test_tiles_of_one_input_wait_for_nothing_and_may_be_mixed() -> None:
    workload = of_one_input(16, 4096, 1024, 1024)
    tiling = Space(workload, H200).guesses[0]
    assert workload.is_independent
    for kind in (InterleaveKind.PRODUCER_FIRST, InterleaveKind.PROPORTIONAL):
        order = Ordering(rasters=(Raster(),) * 3, interleave=Interleave(kind=kind), assignment=Assignment.STATIC)
        schedule = Schedule.of(tiling=tiling, ordering=order)
        (plan,) = plans_for(workload, H200, fused(schedule))
        assert plan.plan.num_signals == 0
    assert not BLOCK.is_independent


def test_every_cut_is_legal_once_and_its_neighbours_are_cuts() -> None:
    for num_ops, count in ((3, 2), (4, 6), (8, 126)):
        all_starts = run_starts_of(num_ops)
        assert len(set(all_starts)) == len(all_starts) == count
        assert all(runs_problem(num_ops, PlanKind.RUNS, starts) is None for starts in all_starts)
        assert all(set(near_run_starts(num_ops, starts)) < set(all_starts) - {starts} | {()} for starts in all_starts)
    assert set(near_run_starts(4, (2,))) == {(1,), (3,), (1, 2), (2, 3)}


@pytest.mark.slow
def test_a_cut_is_an_axis_of_chains_alone() -> None:
    space = Space(BLOCK, H200)
    schedule = in_runs(space.sample(random.Random(2), 1)[0], (1, 3))
    assert from_params(to_params(schedule)) == schedule
    assert to_params(schedule).keys() == distributions(next(iter(space))).keys()
    assert {f"begins_run_{op}" for op in (1, 2, 3)} < distributions(schedule).keys()
    pair = replace(schedule, ops=schedule.ops[:2])
    assert not any(name.startswith("begins_run") for name in distributions(pair))
    changed = {one.ordering.run_starts for one in space.neighbours(schedule)}
    assert changed == {(1, 3), *near_run_starts(4, (1, 3))}
