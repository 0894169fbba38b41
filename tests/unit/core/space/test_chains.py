"""The space of chains: bounded, legal, and with cuts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.cases import H200, decoder_block
from tuner.core.legal.legality import runs_problem
from tuner.core.problem.presets import decoder_block as block_of_a_model
from tuner.core.problem.workload import GemmOp, Workload, WorkloadKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.core.space.combined import best_together, num_each
from tuner.core.space.run_starts import near_run_starts, run_starts_of
from tuner.core.space.space import Space
from tuner.core.space.wgmma_tile_shapes import TileShape, balanced_us
from tuner.search.axes import distributions, from_params, to_params
from tuner.search.pool import in_runs

BLOCK = block_of_a_model("llama3-8b", m=16)


def eight_ops() -> Workload:
    ops = tuple(GemmOp(name=f"op{i}", m=2, n=512, k=512, source=f"op{i - 1}" if i else "x") for i in range(8))
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


@pytest.mark.slow
@pytest.mark.parametrize("workload", [decoder_block(16, 512, 512, 512, heads=512), eight_ops()], ids=["four", "eight"])
def test_the_tilings_of_a_chain_are_bounded_legal_and_of_every_engine(workload: Workload) -> None:
    space = Space(workload, H200)
    by_engine = Counter(tiling.engine for tiling in space.tilings)
    assert len(set(space.tilings)) == len(space.tilings) < 20_000
    assert set(by_engine) == set(Engine) - ({Engine.SIMT} if workload.ops[0].m > 4 else set())
    drawn = space.sample(random.Random(1), 30)
    assert all(space.is_legal(schedule) for schedule in drawn)
    assert len({schedule.tiling.engine for schedule in drawn}) == len(by_engine)


def test_small_ops_of_a_chain_are_offered_in_parts_while_large_ones_stay_whole() -> None:
    shard = block_of_a_model("llama3-70b", m=16, tp=8, has_reduce=False)
    splits = {tuple(tiling.num_parts(op) > 1 for op in range(4)) for tiling in Space(shard, H200).tilings}
    assert any(split[3] and not split[1] for split in splits)


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
    """Of six SMs: two ops of three tasks each fill one wave together, two of four do not."""
    fitting, not_fitting = (shape(3, 1.0), shape(3, 1.0)), (shape(4, 1.0), shape(4, 1.0))
    assert balanced_us(fitting, 6) == (1 + 2) / 2
    assert balanced_us(not_fitting, 6) == (2 + 2) / 2


def test_every_cut_is_legal_once_and_its_neighbours_are_cuts() -> None:
    for num_ops, count in ((3, 2), (4, 6), (8, 126)):
        all_starts = run_starts_of(num_ops)
        assert len(set(all_starts)) == len(all_starts) == count
        assert all(runs_problem(num_ops, PlanKind.RUNS, starts) is None for starts in all_starts)
        assert all(set(near_run_starts(num_ops, starts)) < set(all_starts) - {starts} | {()} for starts in all_starts)
    assert set(near_run_starts(4, (2,))) == {(1,), (3,), (1, 2), (2, 3)}


def test_a_cut_is_an_axis_of_chains_alone() -> None:
    space = Space(BLOCK, H200)
    schedule = in_runs(space.sample(random.Random(2), 1)[0], (1, 3))
    assert from_params(to_params(schedule)) == schedule
    assert to_params(schedule).keys() == distributions(4).keys()
    assert not any(name.startswith("begins_run") for name in distributions(2))
    changed = {one.ordering.run_starts for one in space.neighbours(schedule)}
    assert changed == {(1, 3), *near_run_starts(4, (1, 3))}
