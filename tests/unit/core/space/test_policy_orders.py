from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from tests.support.cases import H200, fork, small_gpu
from tests.support.interpret import interpret, plain_product, random_tensors
from tests.support.lanes import one_in
from tuner.core.legal.legality import check_schedule
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitTiles,
)
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.space.policy_orders import RULES, policies_of, policy_plans, policy_schedules, same_order
from tuner.core.space.space import Space
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

#: Different heights, so that a row of the second op waits for several rows of the first.
TILING = Tiling(tiles=(Tile(m=16, n=32, k=32), Tile(m=32, n=64, k=32)), num_stages=3, num_warps=4)
PAIR = ffn_pair(m=70, d_in=64, d_hidden=96, d_out=130)
ROWS = (Raster(), Raster())


def base(tiling: Tiling = TILING, **ordering: object) -> Schedule:
    given = {"rasters": tuple(Raster(kind=RasterKind.COLUMN) for _ in tiling.tiles), **ordering}
    return Schedule.of(tiling=tiling, ordering=Ordering(**given))  # type: ignore[arg-type]


def test_each_rule_has_its_schedule_on_the_kernel_and_the_grid_that_are_there() -> None:
    found = policy_schedules(PAIR, small_gpu(5), base(reserved_sms=1))
    assert list(found) == list(RULES)
    for schedule in found.values():
        assert schedule.tiling == TILING
        assert (schedule.ordering.ctas_per_sm, schedule.ordering.reserved_sms) == (1, 1)
        assert schedule.ordering.rasters == ROWS
        check_schedule(PAIR, small_gpu(5), schedule)
    orderings = {name: schedule.ordering for name, schedule in found.items()}
    assert {ordering.interleave.kind for ordering in orderings.values()} == {InterleaveKind.PRODUCER_FIRST}
    assert (orderings["append"].granularity, orderings["append"].assignment) == (Granularity.BARRIER, Assignment.STATIC)
    assert orderings["longest_first"].granularity is orderings["wavefront"].granularity is Granularity.ROW
    assert orderings["longest_first"].assignment is Assignment.TICKET


def test_independent_ops_of_one_wave_are_mixed_and_drawn_where_their_tasks_are_of_unequal_length() -> None:
    two = independent_pair((64, 128, 512), (64, 128, 64))
    one = base(replace(TILING, tiles=(Tile(m=16, n=32, k=32),) * 2))
    found, plans = (made(two, small_gpu(7), one) for made in (policy_schedules, policy_plans))
    ordering = found["wavefront"].ordering
    assert (ordering.interleave.kind, ordering.assignment) == (InterleaveKind.PROPORTIONAL, Assignment.TICKET)
    queues = np.diff(plans["wavefront"].plan.queues)
    assert len(set(queues.tolist())) > 1  # a CTA with a long task has fewer of them
    even = independent_pair((64, 128, 64), (64, 128, 64))
    assert policy_schedules(even, small_gpu(7), one)["wavefront"].ordering.assignment is Assignment.STATIC


WORKLOADS = [PAIR, independent_pair((64, 128, 32), (32, 64, 96)), fork(40, (32, 64, 96, 33))]


@pytest.mark.parametrize("workload", WORKLOADS, ids=Workload.describe)
@pytest.mark.parametrize("is_split", [False, True])
def test_every_rules_plan_computes_the_product(workload: Workload, is_split: bool) -> None:
    parts = tuple(2 if op.k > 32 else 1 for op in workload.tile_ops) if is_split else ()
    tiling = replace(TILING, tiles=(Tile(m=16, n=32, k=32),) * len(workload.tile_ops), split_k=parts)
    tensors = random_tensors(workload, 0)
    plans = policy_plans(workload, small_gpu(5), base(tiling))
    assert list(plans) == list(RULES)
    for plan in plans.values():
        outputs = interpret(plan.plan, plan.graph, tensors, random.Random(0))
        for op, wanted in plain_product(workload, tensors).items():
            np.testing.assert_allclose(outputs[op], wanted)
        split = [rows * cols for op, (rows, cols) in plan.graph.grids.items() if tiling.num_parts(op) > 1]
        assert plan.plan.num_split_tiles == sum(split)


def test_only_the_tail_is_split_where_only_the_tail_was() -> None:
    tiling = replace(TILING, tiles=(Tile(m=16, n=32, k=32),) * 2, split_k=(2, 2))
    whole, tail = (base(tiling, split_tiles=split) for split in (SplitTiles.ALL, SplitTiles.TAIL))
    gpu = small_gpu(7)
    counts = [policy_plans(PAIR, gpu, one)["append"].plan.num_split_tiles for one in (whole, tail)]
    assert 0 < counts[1] < counts[0]
    named = policy_schedules(PAIR, gpu, tail)
    assert {schedule.ordering.split_tiles for schedule in named.values()} == {SplitTiles.TAIL}


# In CI, another test has each rule's schedule.
@pytest.mark.soak
@pytest.mark.parametrize("m", one_in(3, [2, 16, 256]))
def test_what_a_rule_gives_is_told_to_be_that_rules_for_every_engine(m: int) -> None:
    workload = ffn_pair(m=m, d_in=512, d_hidden=1024, d_out=512)
    space = Space(workload, H200)
    by_engine = {engine: [t for t in space.tilings if t.engine is engine] for engine in Engine}
    for tilings in by_engine.values():
        for tiling in islice(tilings, 0, None, max(1, len(tilings) // 2)):
            one = next(iter(space.orderings(tiling)), None)
            if one is None:
                continue
            named = policy_schedules(workload, H200, Schedule.of(tiling=tiling, ordering=one))
            for name, schedule in named.items():
                assert space.is_legal(schedule)
                names = policies_of(workload, H200, schedule)
                assert name in names or (name, schedule.ordering.assignment) == ("wavefront", Assignment.TICKET)


def test_another_walk_another_grid_and_other_signals_are_no_policys() -> None:
    gpu = small_gpu(5)
    schedule = policy_schedules(PAIR, gpu, base())["wavefront"]
    assert "wavefront" in policies_of(PAIR, gpu, schedule)
    for changed in ({"rasters": base().ordering.rasters}, {"granularity": Granularity.TILE}):
        other = schedule.but(ordering=replace(schedule.ordering, **changed))
        assert policies_of(PAIR, gpu, other) == []
    fewer = schedule.but(ordering=replace(schedule.ordering, reserved_sms=1))
    assert "wavefront" in policies_of(PAIR, gpu, fewer)  # it is one on its own grid


def test_how_far_a_ring_is_filled_ahead_is_no_matter_of_order() -> None:
    graph, gpu = tile_graph(PAIR, TILING), small_gpu(5)
    one, held = (make_plan(graph, Ordering(rasters=ROWS, run_ahead=percent), gpu) for percent in (100, 0))
    other = make_plan(graph, Ordering(rasters=ROWS, granularity=Granularity.TILE), gpu)
    assert one.held_stages != held.held_stages
    assert same_order(one, held)
    assert not same_order(one, other)
